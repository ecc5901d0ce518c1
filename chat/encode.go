package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/chat/internal/jinja"
	"github.com/gofsdp/gofsdp/tokenizer"
)

// Learn selects the tokens of a conversation that a model should learn.
type Learn int

const (
	// LearnAnswers: every assistant message, its text and the token that ends the turn.
	LearnAnswers Learn = iota
	// LearnLastAnswer: only the last assistant message.
	LearnLastAnswer
	// LearnAll: every token, prompts and template text included.
	LearnAll
)

// EncodeOptions are options of Encode. The zero value renders the conversation alone and
// learns the assistant's answers.
type EncodeOptions struct {
	RenderOptions
	Learn Learn
}

// PrefixError says that a template does not render the first messages of a conversation as
// a prefix of the whole, so that the answers cannot be located. Such a template needs
// {% generation %} tags.
type PrefixError struct {
	Message int    // index of the assistant message
	Want    string // end of the expected prefix
	Got     string // what stands there instead
}

func (e *PrefixError) Error() string {
	return fmt.Sprintf("the template renders the start of the conversation differently once assistant message %d follows (%q instead of %q): "+
		"put {%% generation %%} around the assistant's text in the template", e.Message, e.Got, e.Want)
}

// ErrNoAnswer is returned by Encode when nothing in the conversation is to be learnt.
var ErrNoAnswer = errors.New("no assistant message to learn from")

// Encode renders msgs and returns the token ids with, for each, whether a model should learn
// it. Spans that the template puts in {% generation %} tags are used where there are any.
// Otherwise answers are located by rendering the messages before each, with the generation
// prompt, and up to each. A learnt span ends with the last special token of the turn; white
// space after that is the template's. A token across the start of an answer counts as learnt.
func (t *Template) Encode(tok *tokenizer.Tokenizer, msgs []Message, opts EncodeOptions) (ids []int32, learn []bool, err error) {
	text, err := t.Render(msgs, opts.RenderOptions)
	if err != nil {
		return nil, nil, err
	}
	enc, err := tok.EncodeOffsets(text, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("chat: encode: %w", err)
	}
	learn = make([]bool, len(enc.IDs))
	if opts.Learn == LearnAll {
		for i := range learn {
			learn[i] = true
		}
		return enc.IDs, learn, nil
	}
	tagged := strings.Contains(t.source, "endgeneration")
	var spans []tokenizer.Span
	if tagged {
		spans, err = t.generationSpans(msgs, text, opts)
	} else {
		spans, err = t.answers(msgs, text, opts)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("chat: encode: %w", err)
	}
	if len(spans) == 0 {
		return nil, nil, fmt.Errorf("chat: encode: %w", ErrNoAnswer)
	}
	if opts.Learn == LearnLastAnswer {
		spans = spans[len(spans)-1:]
	}
	at := 0
	for _, span := range spans {
		for at < len(enc.IDs) && enc.Offsets[at].End <= span.Start {
			at++
		}
		first := at
		for at < len(enc.IDs) && enc.Offsets[at].Start < span.End {
			at++
		}
		end := at
		if !tagged {
			end = turnEnd(tok, enc, first, at, text)
		}
		for i := first; i < end; i++ {
			learn[i] = true
		}
	}
	return enc.IDs, learn, nil
}

// turnEnd returns the end of the learnt part of tokens [first, end): after the last special
// token, or before white space at the end if there is none.
func turnEnd(tok *tokenizer.Tokenizer, enc tokenizer.Encoding, first, end int, text string) int {
	for i := end; i > first; i-- {
		if tok.IsSpecial(enc.IDs[i-1]) {
			return i
		}
	}
	for end > first {
		s := enc.Offsets[end-1]
		if strings.TrimSpace(text[s.Start:s.End]) != "" {
			break
		}
		end--
	}
	return end
}

// answers locates the assistant messages in text: each from the end of its generation
// prompt to the end of its turn.
func (t *Template) answers(msgs []Message, text string, opts EncodeOptions) ([]tokenizer.Span, error) {
	var spans []tokenizer.Span
	for i, m := range msgs {
		if m.Role != "assistant" {
			continue
		}
		ro := opts.RenderOptions
		ro.AddGenerationPrompt = true
		before, err := t.render(msgs[:i], ro, false)
		if err != nil {
			return nil, fmt.Errorf("prompt of assistant message %d: %w", i, err)
		}
		ro.AddGenerationPrompt = false
		upTo, err := t.render(msgs[:i+1], ro, false)
		if err != nil {
			return nil, fmt.Errorf("conversation up to assistant message %d: %w", i, err)
		}
		for _, prefix := range []string{before, upTo} {
			if !strings.HasPrefix(text, prefix) {
				return nil, prefixError(i, prefix, text)
			}
		}
		if len(upTo) < len(before) {
			return nil, prefixError(i, before, upTo)
		}
		spans = append(spans, tokenizer.Span{Start: len(before), End: len(upTo)})
	}
	return spans, nil
}

func prefixError(message int, want, got string) *PrefixError {
	at := 0
	for at < len(want) && at < len(got) && want[at] == got[at] {
		at++
	}
	around := func(s string) string {
		return strings.ToValidUTF8(s[max(0, min(at, len(s))-20):min(len(s), at+20)], "")
	}
	return &PrefixError{Message: message, Want: around(want), Got: around(got)}
}

// generationSpans renders once more with the generation tags marked.
func (t *Template) generationSpans(msgs []Message, text string, opts EncodeOptions) ([]tokenizer.Span, error) {
	marked, err := t.render(msgs, opts.RenderOptions, true)
	if err != nil {
		return nil, err
	}
	plain, spans, ok := unmark(marked)
	if !ok || plain != text {
		return nil, errors.New("the template nests or filters generation tags, or a message contains the noncharacter U+FDD0 or U+FDD1")
	}
	return spans, nil
}

// unmark removes the generation marks and returns the spans between them; ok is false if
// they do not alternate.
func unmark(marked string) (text string, spans []tokenizer.Span, ok bool) {
	var out strings.Builder
	open := -1
	for {
		i := strings.IndexAny(marked, jinja.MarkStart+jinja.MarkEnd)
		if i < 0 {
			out.WriteString(marked)
			return out.String(), spans, open < 0
		}
		out.WriteString(marked[:i])
		if strings.HasPrefix(marked[i:], jinja.MarkStart) != (open < 0) {
			return "", nil, false
		}
		if open < 0 {
			open = out.Len()
		} else {
			spans = append(spans, tokenizer.Span{Start: open, End: out.Len()})
			open = -1
		}
		marked = marked[i+len(jinja.MarkStart):]
	}
}
