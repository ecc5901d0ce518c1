package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// Template is a parsed chat template. It is safe for concurrent use.
type Template struct {
	source  string
	special map[string]string
	tpl     *exec.Template
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
	tpl, err := compile(template)
	if err != nil {
		return nil, fmt.Errorf("chat: parse template: %s", withoutSource(err, template))
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

// withoutSource shortens an engine error that quotes the whole template.
func withoutSource(err error, template string) string {
	return strings.ReplaceAll(err.Error(), template, "chat_template")
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

func (t *Template) render(msgs []Message, opts RenderOptions, marks bool) (out string, err error) {
	var raised *RaisedError
	defer func() {
		recoverTo(&err)
		switch {
		case err == nil:
		case raised != nil:
			out, err = "", fmt.Errorf("chat: render: %w", raised)
		default:
			out, err = "", fmt.Errorf("chat: render: %s", withoutSource(err, t.source))
		}
	}()
	vars := map[string]any{}
	for name, token := range t.special {
		vars[name] = token
	}
	list := make([]any, len(msgs))
	for i, m := range msgs {
		if list[i], err = toEngine(m); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	vars["messages"] = list
	vars["add_generation_prompt"] = opts.AddGenerationPrompt
	if opts.Tools != nil {
		tools := make([]any, len(opts.Tools))
		for i, raw := range opts.Tools {
			if tools[i], err = toEngine(raw); err != nil {
				return "", fmt.Errorf("tool %d: %w", i, err)
			}
		}
		vars["tools"] = tools
	}
	for _, f := range opts.Vars {
		if vars[f.Name], err = toEngine(f.Value); err != nil {
			return "", fmt.Errorf("variable %s: %w", f.Name, err)
		}
	}
	vars["raise_exception"] = func(args *exec.VarArgs) (*exec.Value, error) {
		if raised == nil {
			raised = &RaisedError{args.First().String()}
		}
		return nil, raised
	}
	now := opts.Now
	if now.IsZero() {
		now = time.Now()
	}
	vars["strftime_now"] = func(args *exec.VarArgs) (string, error) {
		return strftime(now, args.First().String())
	}
	if marks {
		vars[marksVar] = true
	}
	return t.tpl.ExecuteToString(exec.NewContext(vars))
}
