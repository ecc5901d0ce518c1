package data_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/data"
)

func write(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func open(t testing.TB, content string) *data.Dataset {
	t.Helper()
	d, err := data.Open(write(t, content))
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func TestOpenReadsEveryShape(t *testing.T) {
	for _, c := range []struct {
		name, src string
		want      data.Row
	}{
		{"messages", `{"messages":[{"role":"user","content":"hé"},{"role":"assistant","content":"a\nb 😀"}],"id":7}`,
			data.Row{Kind: data.KindMessages, Messages: []data.Message{{Role: "user", Content: "hé"}, {Role: "assistant", Content: "a\nb 😀"}}}},
		{"parts and extras", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[{"n":1}]}],"tools":["f"]}`,
			data.Row{Kind: data.KindMessages, Tools: []json.RawMessage{json.RawMessage(`"f"`)}, Messages: []data.Message{{Role: "user", Content: "ab"},
				{Role: "assistant", Extra: []data.Field{{"content", json.RawMessage("null")}, {"tool_calls", json.RawMessage(`[{"n":1}]`)}}}}}},
		{"text", `{"text":"x"}`, data.Row{Kind: data.KindText, Text: "x"}},
		{"completion", `{"prompt":"p","completion":"c"}`, data.Row{Kind: data.KindCompletion, Prompt: "p", Completion: "c"}},
		{"chat completion", `{"prompt":[{"role":"user","content":"p"}],"completion":[{"role":"assistant","content":"c"}]}`,
			data.Row{Kind: data.KindCompletion, PromptMessages: 1, Messages: []data.Message{{Role: "user", Content: "p"}, {Role: "assistant", Content: "c"}}}},
		{"tokens", `{"input_ids":[1,2,3],"labels":[-100,2,3]}`, data.Row{Kind: data.KindTokens, IDs: []int32{1, 2, 3}, Labels: []int32{-100, 2, 3}}},
		{"tokens without labels", `{"input_ids":[1,2]}`, data.Row{Kind: data.KindTokens, IDs: []int32{1, 2}, Labels: []int32{1, 2}}},
		{"tokens with a mask", `{"input_ids":[1,2],"completion_mask":[0,1]}`, data.Row{Kind: data.KindTokens, IDs: []int32{1, 2}, Labels: []int32{-100, 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// As a line among others, and as an element of an array that is spread over lines.
			for _, file := range []string{
				"\xef\xbb\xbf" + c.src + "\r\n\n  " + c.src,
				"[\n  " + c.src + ",\n" + strings.ReplaceAll(c.src, `":"`, "\":\n\"") + "\n]\n",
			} {
				d := open(t, file)
				require.Equal(t, 2, d.Len())
				require.Equal(t, c.want.Kind, d.Kind())
				for row, err := range d.All() {
					require.NoError(t, err)
					require.Equal(t, c.want, row)
				}
			}
		})
	}
}

func TestOpenNamesThePlaceOfAFault(t *testing.T) {
	const ok = `{"messages":[{"role":"user","content":"hi"}]}` + "\n"
	for _, c := range []struct{ name, src, at, msg string }{
		{"truncated", ok + `{"messages":[{"role":"us`, "2:25", "ends too early"},
		{"truncated object", ok + `{"text":"a"`, "2:12", "want ',' or '}'"},
		{"garbage", ok + `{"text":"a"} x`, "2:14", "unexpected 'x' after the end"},
		{"single quotes", `{'text':"a"}`, "1:2", "want a key in double quotes"},
		{"bad number", `{"input_ids":[01]}`, "1:15", `"01" is not a number`},
		{"bad escape", `{"text":"a\q"}`, "1:9", "bad escape"},
		{"raw tab", "{\"text\":\"a\tb\"}", "1:11", "control character 0x09"},
		{"not an object", `"text"`, "1:1", "a row must be an object, got a string"},
		{"null text", `{"text":null}`, "1:9", "text must be a string, got null"},
		{"number", `{"text":1}`, "1:9", "got a number"},
		{"missing", `{"txt":"a"}`, "1:1", `it has "txt"`},
		{"half", `{"prompt":"a"}`, "1:1", `no "completion"`},
		{"empty messages", `{"messages":[]}`, "1:13", "messages is empty"},
		{"messages are text", `{"messages":"hi"}`, "1:13", "must be an array, got a string"},
		{"message is text", `{"messages":["hi"]}`, "1:14", "messages[0] must be an object"},
		{"no role", `{"messages":[{"content":"hi"}]}`, "1:14", `messages[0] has no "role"`},
		{"role type", `{"messages":[{"role":3,"content":"hi"}]}`, "1:22", "messages[0].role must be a string, got a number"},
		{"unknown role", `{"messages":[{"role":"usr","content":"hi"}]}`, "1:22", `unknown role "usr"; known are system`},
		{"no content", `{"messages":[{"role":"user"}]}`, "1:14", `has no "content"`},
		{"null content", `{"messages":[{"role":"user","content":null}]}`, "1:39", "content (role user) is null"},
		{"image", `{"messages":[{"role":"user","content":[{"type":"image"}]}]}`, "1:40", "only text can be trained on"},
		{"tools", `{"messages":[{"role":"user","content":"x"}],"tools":"f"}`, "1:53", "tools must be an array, got a string"},
		{"invalid UTF-8", ok + "{\"text\":\"a\xff\"}", "2:11", "invalid UTF-8 (byte 0xff)"},
		{"type change", ok + `{"text":"a"}`, "2:1", "the row has text, but the first row (line 1) has messages"},
		{"ids", `{"input_ids":[1,-2]}`, "1:17", "input_ids[1] is -2"},
		{"huge id", `{"input_ids":[4294967296]}`, "1:15", "no token id"},
		{"float id", `{"input_ids":[1.5]}`, "1:15", "no token id"},
		{"no ids", `{"input_ids":[]}`, "1:14", "input_ids is empty"},
		{"labels", `{"input_ids":[1],"labels":[1,2]}`, "1:27", "labels has 2 entries, input_ids has 1"},
		{"array, second element", "[\n{\"text\":\"a\"},\n  {\"text\":\n 3}]", "4:2", "got a number"},
		{"array cut", "[\n{\"text\":\"a\"},\n{\"text\":\"b", "3:11", "the file ends within the array"},
		{"after the array", "[{\"text\":\"a\"}] x", "1:16", `unexpected 'x' after the end of the array`},
		{"deep", strings.Repeat(`{"a":`, 300), "1:1006", "levels of nesting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, c.src)
			_, err := data.Open(path)
			var row *data.RowError
			require.ErrorAs(t, err, &row)
			require.Contains(t, row.Error(), path+":"+c.at+": ")
			require.ErrorContains(t, err, c.msg)
		})
	}
}

func TestOpenRefusesEmptyFilesAndHugeRows(t *testing.T) {
	_, err := data.Open(write(t, "\n \n"))
	require.ErrorContains(t, err, "has no rows")
	_, err = data.Open(filepath.Join(t.TempDir(), "absent.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)

	long := `{"text":"` + strings.Repeat("x", 5000) + `"}`
	for _, src := range []string{"{\"text\":\"a\"}\n" + long, "[{\"text\":\"a\"},\n" + long + "]"} {
		_, err = data.OpenWith(write(t, src), data.Options{MaxRowBytes: 1000})
		require.ErrorContains(t, err, ":2:1: the row is longer than 1000 bytes")
	}
}

func TestOptionsRenameTextAndRoles(t *testing.T) {
	d, err := data.OpenWith(write(t, `{"content":"x","text":null}`), data.Options{TextField: "content"})
	require.NoError(t, err)
	defer d.Close()
	row, err := d.Row(0)
	require.NoError(t, err)
	require.Equal(t, "x", row.Text)

	d, err = data.OpenWith(write(t, `{"messages":[{"role":"critic","content":"x"}]}`), data.Options{Roles: []string{"critic"}})
	require.NoError(t, err)
	defer d.Close()
	_, err = d.Row(1)
	require.ErrorContains(t, err, "which has 1 rows")
}

// FuzzOpen checks that no file makes Open panic, that a fault has a place, and that what is accepted is valid JSON for
// the standard library too, with the same text.
func FuzzOpen(f *testing.F) {
	for _, seed := range []string{
		`{"text":"a\ud800\u0041"}`, `[{"text":"a"},{"text":"b"}]`, `{"messages":[{"role":"user","content":"x"}]}`,
		`{"input_ids":[1,2e0],"labels":[]}`, "{\"text\":\"\xc3\x28\"}", `{"prompt":[],"completion":{}}`, "[", "\xef\xbb\xbf", `{"text":1e}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		path := filepath.Join(t.TempDir(), "rows")
		require.NoError(t, os.WriteFile(path, src, 0o600))
		d, err := data.Open(path)
		if err != nil {
			var row *data.RowError
			if errors.As(err, &row) {
				require.Positive(t, row.Line)
				require.Positive(t, row.Col)
			}
			return
		}
		defer d.Close()
		for row, err := range d.All() {
			require.NoError(t, err)
			if row.Kind == data.KindText && d.Len() == 1 && src[0] == '{' {
				var std map[string]any
				require.NoError(t, json.Unmarshal(src, &std))
				require.Equal(t, std["text"], row.Text)
			}
		}
	})
}
