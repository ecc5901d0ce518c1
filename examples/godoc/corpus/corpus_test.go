package corpus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/examples/godoc/corpus"
)

// load reads a small made-up installation.
func load(t *testing.T) []corpus.Symbol {
	t.Helper()
	symbols, err := corpus.Load(t.Context(), "testdata/goroot")
	require.NoError(t, err)
	return symbols
}

func find(t *testing.T, symbols []corpus.Symbol, qualified string) corpus.Symbol {
	t.Helper()
	for _, s := range symbols {
		if s.Qualified() == qualified {
			return s
		}
	}
	require.Fail(t, "no symbol", qualified)
	return corpus.Symbol{}
}

func TestLoadFindsDocumentedSymbols(t *testing.T) {
	var got []string
	for _, s := range load(t) {
		got = append(got, s.Kind+" "+s.Qualified()+" | "+s.Signature)
	}
	require.Equal(t, []string{
		"package deep/words | package words",
		"func words.Count | func words.Count(s string) int",
		"package words | package words",
		"func words.Cut | func words.Cut(s, sep string) (before, after string, found bool)",
		"var words.ErrEmpty | var words.ErrEmpty",
		"const words.Limit | const words.Limit int",
		"type words.List | type words.List[T any] struct",
		"method words.List.Push | func (l *words.List[T]) Push(x T)",
		"func words.NewList | func words.NewList[T any](items ...T) *List[T]",
		"type words.Number | type words.Number int",
		"method words.Number.Next | func (n words.Number) Next() Number",
		"type words.Reader | type words.Reader interface",
		"const words.Red | const words.Red",
	}, got)
}

func TestAnswerKeepsItsForm(t *testing.T) {
	symbols := load(t)
	for _, c := range []struct {
		name string
		max  int
		want string
	}{
		{"words.Cut", 400, "`func words.Cut(s, sep string) (before, after string, found bool)`\n\n" +
			"Cut slices s around the first sep. It returns what is before and after.\n\n" +
			"If sep is not there, found is false.\n\nSee https://pkg.go.dev/words#Cut"},
		{"words.Cut", 180, "`func words.Cut(s, sep string) (before, after string, found bool)`\n\n" +
			"Cut slices s around the first sep. It returns what is before and after.\n\nSee https://pkg.go.dev/words#Cut"},
		{"words.Cut", 140, "`func words.Cut(s, sep string) (before, after string, found bool)`\n\n" +
			"Cut slices s around the first sep.\n\nSee https://pkg.go.dev/words#Cut"},
		{"words.Cut", 100, ""},
		// Neither the sentence that leads to a list, nor a link's brackets.
		{"words.List", 400, "`type words.List[T any] struct`\n\n" +
			"A List is a stack of values of type T, see Cut. Its zero value is empty.\n\nSee https://pkg.go.dev/words#List"},
		{"words", 400, "`package words`\n\nPackage words is a toy. It has two sentences.\n\nSee https://pkg.go.dev/words"},
	} {
		got, ok := corpus.Answer(find(t, symbols, c.name), c.max)
		require.Equal(t, c.want != "", ok, c.name)
		require.Equal(t, c.want, got)
		require.LessOrEqual(t, utf8.RuneCountInString(got), c.max)
	}
}

func TestQuestionNamesThePackageWhereNeeded(t *testing.T) {
	symbols := load(t)
	require.Contains(t, corpus.Question(find(t, symbols, "words.Count"), 1), "words.Count of package deep/words")
	require.Contains(t, corpus.Question(find(t, symbols, "deep/words"), 1), "deep/words")
	asked := map[string]bool{}
	for seed := range uint64(40) {
		asked[corpus.Question(find(t, symbols, "words.Cut"), seed)] = true
	}
	require.Len(t, asked, 4, "every phrasing is used")
}

// TestStandardLibrary runs on the installation that runs the test.
func TestStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	symbols, err := corpus.Load(t.Context(), strings.TrimSpace(string(out)))
	require.NoError(t, err)
	train, eval, err := corpus.Rows(symbols, corpus.Options{Seed: 42})
	require.NoError(t, err)
	require.Greater(t, len(train), 3000)
	require.InDelta(t, 0.1, float64(len(eval))/float64(len(train)+len(eval)), 0.02)

	form := regexp.MustCompile("(?s)^`(package|func|type|const|var) [^`\n]+`\n\n.+\n\nSee https://pkg.go.dev/[a-z0-9/]+(#[\\w.]+)?$")
	pages := map[string]bool{}
	for i, row := range append(train[:len(train):len(train)], eval...) {
		answer := row.Messages[1].Content
		require.Regexp(t, form, answer)
		require.LessOrEqual(t, utf8.RuneCountInString(answer), 400)
		page := answer[strings.LastIndex(answer, "See "):]
		require.False(t, pages[page], "row %d: %s is there twice", i, page)
		pages[page] = true
	}

	again, evalAgain, err := corpus.Rows(symbols, corpus.Options{Seed: 42})
	require.NoError(t, err)
	require.Equal(t, train, again)
	require.Equal(t, eval, evalAgain)
	few, evalFew, err := corpus.Rows(symbols, corpus.Options{Seed: 42, MaxRows: 300})
	require.NoError(t, err)
	require.Len(t, append(few, evalFew...), 300)
	require.Equal(t, train[:len(few)], few, "fewer rows are a prefix")

	// What is written is what data.Open takes.
	content, err := corpus.JSONL(few)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "train.jsonl")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	d, err := data.Open(path)
	require.NoError(t, err)
	defer d.Close()
	require.Equal(t, len(few), d.Len())
	row, err := d.Row(0)
	require.NoError(t, err)
	require.Equal(t, few[0].Messages[1].Content, row.Messages[1].Content)
}

func TestBadInputIsNamed(t *testing.T) {
	_, err := corpus.Load(t.Context(), t.TempDir())
	require.ErrorContains(t, err, "is no Go installation with sources")
	symbols := load(t)
	_, _, err = corpus.Rows(symbols, corpus.Options{EvalFraction: 1})
	require.ErrorContains(t, err, "evaluation fraction is 1")
	_, _, err = corpus.Rows(symbols, corpus.Options{MaxRows: -1})
	require.ErrorContains(t, err, "no negative bound")
	_, _, err = corpus.Rows(symbols, corpus.Options{MaxRows: 1})
	require.ErrorContains(t, err, "want some of both")
}
