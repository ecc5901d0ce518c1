package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/chat/internal/jinja"
)

// Template is a parsed chat template. It is safe for concurrent use.
type Template struct {
	source  string
	special map[string]string
	tpl     *jinja.Template
}

// RenderOptions are the arguments of apply_chat_template. The zero value renders the
// conversation alone.
type RenderOptions struct {
	// AddGenerationPrompt appends the start of an assistant turn for the model to go on.
	AddGenerationPrompt bool
	// Tools are JSON schemas of functions, in the order in which the template lists them.
	Tools []json.RawMessage
	// Vars are further variables of the template, such as enable_thinking.
	Vars []Field
	// Now is the time that strftime_now prints; zero means the current time.
	Now time.Time
}

// RaisedError is a refusal by the template itself: it called raise_exception.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return "template refuses the conversation: " + e.Message }

// ErrNoTemplate is returned by New for an empty template.
var ErrNoTemplate = errors.New("chat: the model has no chat template; give one in chat_template.jinja or tokenizer_config.json")

// warned remembers the unverified templates that were warned about.
var warned sync.Map

// New parses a chat template. special holds the model's special tokens by name (bos_token,
// eos_token, …), which the template may use. A template not in the verified list is warned
// about once per process through slog's default logger.
func New(template string, special map[string]string) (*Template, error) {
	return NewWithWarning(template, special, func(msg string) { slog.Warn(msg) })
}

// NewWithWarning is New with another receiver of warnings; nil ignores them.
func NewWithWarning(template string, special map[string]string, warn func(msg string)) (*Template, error) {
	if template == "" {
		return nil, ErrNoTemplate
	}
	tpl, err := jinja.Parse(template)
	if err != nil {
		return nil, fmt.Errorf("chat: parse template: %w", err)
	}
	t := &Template{source: template, special: make(map[string]string, len(special)), tpl: tpl}
	for k, v := range special {
		t.special[k] = v
	}
	if !Verified(template) {
		hash := Hash(template)
		if _, before := warned.LoadOrStore(hash, true); !before && warn != nil {
			warn(fmt.Sprintf("chat: template with sha256 %s… was not compared with jinja2; check a rendered conversation before training", hash[:16]))
		}
	}
	return t, nil
}

// Hash is the SHA-256 of a template's text in hexadecimal.
func Hash(template string) string {
	sum := sha256.Sum256([]byte(template))
	return hex.EncodeToString(sum[:])
}

// Source returns the template's text.
func (t *Template) Source() string { return t.source }

// Render returns the conversation as text for the model, special tokens included. Encode it
// without adding special tokens again.
func (t *Template) Render(msgs []Message, opts RenderOptions) (string, error) {
	return t.render(msgs, opts, false)
}

func (t *Template) render(msgs []Message, opts RenderOptions, marks bool) (string, error) {
	vars, err := t.variables(msgs, opts)
	if err != nil {
		return "", fmt.Errorf("chat: render: %w", err)
	}
	out, err := t.tpl.Render(vars, jinja.Options{Marks: marks})
	if err != nil {
		return "", fmt.Errorf("chat: render: %w", err)
	}
	return out, nil
}

// variables are what transformers gives to a template.
func (t *Template) variables(msgs []Message, opts RenderOptions) (map[string]any, error) {
	vars := map[string]any{
		"add_generation_prompt": opts.AddGenerationPrompt,
		"tools":                 nil,
		"documents":             nil,
	}
	for name, token := range t.special {
		vars[name] = token
	}
	list := jinja.NewList()
	for i, m := range msgs {
		v, err := toTemplate(m)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		list.Items = append(list.Items, v)
	}
	vars["messages"] = list
	if opts.Tools != nil {
		tools := jinja.NewList()
		for i, raw := range opts.Tools {
			v, err := toTemplate(raw)
			if err != nil {
				return nil, fmt.Errorf("tool %d: %w", i, err)
			}
			tools.Items = append(tools.Items, v)
		}
		vars["tools"] = tools
	}
	for _, f := range opts.Vars {
		v, err := toTemplate(f.Value)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", f.Name, err)
		}
		vars[f.Name] = v
	}
	vars["raise_exception"] = jinja.Func(func(a jinja.Args) (any, error) {
		return nil, &RaisedError{firstString(a)}
	})
	now := opts.Now
	if now.IsZero() {
		now = time.Now()
	}
	vars["strftime_now"] = jinja.Func(func(a jinja.Args) (any, error) {
		return strftime(now, firstString(a))
	})
	return vars, nil
}

func firstString(a jinja.Args) string {
	if len(a.Pos) == 0 {
		return ""
	}
	s, _ := a.Pos[0].(string)
	return s
}
