package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/tokenizer"
	"github.com/stretchr/testify/require"
)

const chatML = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func parse(t testing.TB, source string) *Template {
	t.Helper()
	tpl, err := NewWithWarning(source, map[string]string{"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}, nil)
	require.NoError(t, err)
	return tpl
}

// learnt returns the text of the learnt tokens, runs joined by "|".
func learnt(t testing.TB, tok *tokenizer.Tokenizer, ids []int32, learn []bool) string {
	t.Helper()
	require.Len(t, learn, len(ids))
	var out strings.Builder
	for i := range ids {
		if !learn[i] {
			continue
		}
		if i > 0 && !learn[i-1] && out.Len() > 0 {
			out.WriteString("|")
		}
		out.WriteString(tok.Decode(ids[i:i+1], false))
	}
	return out.String()
}

var turns = []Message{
	{Role: "system", Content: "Be terse."},
	{Role: "user", Content: "one"},
	{Role: "assistant", Content: "first answer"},
	{Role: "user", Content: "two"},
	{Role: "assistant", Content: " second\n"},
}

func TestEncodeLearnsAnswersAndTheirEnd(t *testing.T) {
	tok, tpl := smol(t), parse(t, chatML)
	for learn, want := range map[Learn]string{
		LearnAnswers:    "first answer<|im_end|>| second\n<|im_end|>",
		LearnLastAnswer: " second\n<|im_end|>",
	} {
		ids, mask, err := tpl.Encode(tok, turns, EncodeOptions{Learn: learn})
		require.NoError(t, err)
		require.Equal(t, want, learnt(t, tok, ids, mask))
		text, err := tpl.Render(turns, RenderOptions{})
		require.NoError(t, err)
		require.Equal(t, text, tok.Decode(ids, false))
	}
	ids, mask, err := tpl.Encode(tok, turns, EncodeOptions{Learn: LearnAll})
	require.NoError(t, err)
	require.Equal(t, tok.Decode(ids, false), learnt(t, tok, ids, mask))

	_, _, err = tpl.Encode(tok, turns[:2], EncodeOptions{})
	require.ErrorIs(t, err, ErrNoAnswer)
}

func TestEncodeWithoutSpecialTokens(t *testing.T) {
	tok := smol(t)
	tpl := parse(t, `{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\n\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`)
	ids, mask, err := tpl.Encode(tok, turns[:3], EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, " first answer", learnt(t, tok, ids, mask)) // the space is one token with the word
}

func TestEncodeHonoursGenerationTags(t *testing.T) {
	tok := smol(t)
	tpl := parse(t, `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}`+
		`{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}`)
	ids, mask, err := tpl.Encode(tok, turns, EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, "first answer<|im_end|>| second\n<|im_end|>", learnt(t, tok, ids, mask))
	require.NotContains(t, tok.Decode(ids, false), "\uFDD0")

	_, _, err = tpl.Encode(tok, []Message{{Role: "assistant", Content: "a\uFDD0b\uFDD1"}}, EncodeOptions{})
	require.ErrorContains(t, err, "U+FDD0")
}

func TestEncodePrefixError(t *testing.T) {
	// Earlier turns lose text once another follows.
	tpl := parse(t, `{% for m in messages %}{{ m.role }}:{% if loop.last %}<think>{% endif %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`)
	_, _, err := tpl.Encode(smol(t), turns, EncodeOptions{})
	var prefix *PrefixError
	require.ErrorAs(t, err, &prefix)
	require.Equal(t, 2, prefix.Message)
}

func TestRenderErrors(t *testing.T) {
	_, err := New("", nil)
	require.ErrorIs(t, err, ErrNoTemplate)
	_, err = NewWithWarning("a\n{% if %}", nil, nil)
	require.ErrorContains(t, err, "line 2")

	tpl := parse(t, `{{ raise_exception('roles must alternate') }}`)
	_, err = tpl.Render(turns, RenderOptions{})
	var raised *RaisedError
	require.True(t, errors.As(err, &raised))
	require.Equal(t, "roles must alternate", raised.Message)

	for source, want := range map[string]string{
		"\n{{ messages[9].role }}":                                          "line 2",
		`{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`:                   "nested deeper",
		`{% include 'x' %}`:                                                 `"include"`,
		"{{" + strings.Repeat("(", 9999) + strings.Repeat(")", 9999) + "}}": "deeper than",
		`{{ {1: 2} }}`: "only strings",
		`{% set n = namespace(s="ab") %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}`:                    "exceeds 64 MiB",
		`{% set n = namespace(s="ab") %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}`:                    "exceeds 64 MiB",
		`{% set n = namespace(s="ab") %}{% for a in range(60) %}{% set n.s = "%s%s" % (n.s, n.s) %}{% endfor %}`:          "exceeds 64 MiB",
		`{% set n = namespace(s="ab") %}{% for a in range(60) %}{% set n.s = n.s|replace("a", n.s) %}{% endfor %}`:        "exceeds 64 MiB",
		`{% set n = namespace(s="ab") %}{% for a in range(60) %}{% set n.s = [n.s, n.s]|join(n.s) %}{% endfor %}`:         "exceeds 64 MiB",
		`{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}`:                     "exceeds 64 MiB",
		`{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}`:           "exceeds 64 MiB",
		`{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = {"x": n.s, "y": n.s} %}{% endfor %}{{ n.s }}`: "exceeds 64 MiB",
		`{% set n = namespace(s=[1]) %}{% for a in range(999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}`:               "nested deeper than 200",
		`{% set s = "a" * 1000000 %}{% for a in range(99999) %}{% set b = s ~ a %}{% endfor %}`:                           "more than 1024 MiB of values",
		`{{ ("\n" * 1000000)|indent(1000) }}`:                                            "exceeds 64 MiB",
		`{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}`: "too many steps",
	} {
		tpl, err := NewWithWarning(source, nil, nil)
		if err == nil {
			_, err = tpl.Render(turns, RenderOptions{})
		}
		require.ErrorContains(t, err, want, source[:min(len(source), 80)])
	}
	_, err = tpl.Render([]Message{{Role: "user", Content: "\xff"}}, RenderOptions{})
	require.ErrorContains(t, err, "message 0: content")
}

func TestToolsKeepTheirOrder(t *testing.T) {
	tpl := parse(t, `{{ tools | tojson }}|{{ messages[0] | tojson }}|{{ strftime_now('%d %b %Y %-d %H:%M') }}|{{ thinking }}`)
	text, err := tpl.Render(
		[]Message{{Role: "assistant", Extra: []Field{{"tool_calls", []any{Object{{"z", 1.0}, {"a", nil}}}}}}},
		RenderOptions{
			Tools: []json.RawMessage{json.RawMessage(`{"b":{"y":1,"x":"é<"},"a":[1.5,true]}`)},
			Vars:  []Field{{"thinking", false}},
			Now:   time.Date(2026, 3, 5, 9, 7, 0, 0, time.UTC),
		})
	require.NoError(t, err)
	require.Equal(t, `[{"b": {"y": 1, "x": "é<"}, "a": [1.5, true]}]|`+
		`{"role": "assistant", "content": "", "tool_calls": [{"z": 1.0, "a": null}]}|05 Mar 2026 5 09:07|False`, text)
}

func TestMessageJSON(t *testing.T) {
	var m Message
	require.NoError(t, json.Unmarshal([]byte(`{"tool_calls":[{"b":1,"a":2}],"role":"assistant","content":null}`), &m))
	require.Equal(t, Message{Role: "assistant", Extra: []Field{
		{"tool_calls", []any{Object{{"b", 1}, {"a", 2}}}}, {"content", nil},
	}}, m)
	out, err := json.Marshal(m)
	require.NoError(t, err)
	require.JSONEq(t, `{"role":"assistant","content":null,"tool_calls":[{"b":1,"a":2}]}`, string(out))

	require.ErrorContains(t, json.Unmarshal([]byte(`{"content":"x"}`), &m), "no role")
	require.ErrorContains(t, json.Unmarshal([]byte(`[1]`), &m), "want an object")
}

func TestUnlistedTemplateWarnsOnce(t *testing.T) {
	source := chatML + fmt.Sprintf("{# %d #}", time.Now().UnixNano())
	var warnings []string
	for range 3 {
		_, err := NewWithWarning(source, nil, func(msg string) { warnings = append(warnings, msg) })
		require.NoError(t, err)
	}
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], Hash(source)[:16])
	require.True(t, Verified(readGolden(t).Template))
}

func TestConcurrentUse(t *testing.T) {
	tok, tpl := smol(t), parse(t, chatML)
	want, _, err := tpl.Encode(tok, turns, EncodeOptions{})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got, _, err := tpl.Encode(tok, turns, EncodeOptions{}); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %v, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkRender(b *testing.B) {
	tpl := parse(b, chatML)
	for b.Loop() {
		_, err := tpl.Render(turns, RenderOptions{})
		require.NoError(b, err)
	}
}

func ExampleTemplate_Render() {
	tpl, err := NewWithWarning(chatML, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := tpl.Render([]Message{{Role: "user", Content: "Hi"}}, RenderOptions{AddGenerationPrompt: true})
	fmt.Println(text, err)
	// Output:
	// <|im_start|>user
	// Hi<|im_end|>
	// <|im_start|>assistant
	//  <nil>
}
