package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/chat/internal/jinja"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// jinjaGolden holds small templates and what jinja2 makes of them.
type jinjaGolden struct {
	Vars  json.RawMessage
	Cases []struct{ Source, Text, Error string }
}

func readJinjaGolden(t testing.TB) (jinjaGolden, []Field) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testdata, "tokenizer", "jinja.json"))
	require.NoError(t, err)
	var g jinjaGolden
	require.NoError(t, json.Unmarshal(data, &g))
	vars, err := ParseJSON(g.Vars)
	require.NoError(t, err)
	return g, vars.(Object)
}

func TestGoldenJinja(t *testing.T) {
	g, vars := readJinjaGolden(t)
	require.NotEmpty(t, g.Cases)
	for _, c := range g.Cases {
		text := ""
		tpl, err := NewWithWarning(c.Source, nil, nil)
		if err == nil {
			text, err = tpl.Render(nil, RenderOptions{Vars: vars})
		}
		if c.Error != "" {
			// jinja2 numbers and wraps its errors differently; that there is one counts.
			assert.Error(t, err, "%q: jinja2: %s, here %q", c.Source, c.Error, text)
			continue
		}
		assert.NoError(t, err, "%q", c.Source)
		assert.Equal(t, c.Text, text, "%q", c.Source)
	}
}

func FuzzTemplate(f *testing.F) {
	g, vars := readJinjaGolden(f)
	for _, c := range g.Cases {
		f.Add(c.Source)
	}
	values := map[string]any{}
	for _, v := range vars {
		e, err := toTemplate(v.Value)
		require.NoError(f, err)
		values[v.Name] = e
	}
	f.Fuzz(func(t *testing.T, src string) {
		if strings.Contains(src, "range") || strings.Contains(src, "**") || len(src) > 4096 {
			return // slow on purpose
		}
		if tpl, err := jinja.Parse(src); err == nil {
			_, _ = tpl.Render(values, jinja.Options{})
		}
	})
}
