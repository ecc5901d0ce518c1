package chat

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// rootName is the only name that loads: templates can include no files.
const rootName = "chat_template"

// compile parses a template with the settings of transformers.
func compile(source string) (tpl *exec.Template, err error) {
	defer recoverTo(&err)
	cfg := config.New()
	cfg.TrimBlocks = true
	cfg.LeftStripBlocks = true
	return exec.NewTemplate(rootName, cfg, onlyRoot(source), &exec.Environment{
		Context:           exec.EmptyContext().Update(builtins.GlobalFunctions).Update(exec.NewContext(map[string]any{"range": pyRange})),
		Filters:           filters,
		Tests:             tests,
		ControlStructures: tags,
		Methods:           methods,
	})
}

// recoverTo turns a panic of the engine (say, on x % 0) into an error.
func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("template engine: %v", r)
	}
}

// onlyRoot is a loader that knows one template.
type onlyRoot string

func (s onlyRoot) Read(name string) (io.Reader, error) {
	if name != rootName {
		return nil, fmt.Errorf("template %q: a chat template cannot load others", name)
	}
	return strings.NewReader(string(s)), nil
}

func (s onlyRoot) Resolve(name string) (string, error) { return name, nil }

func (s onlyRoot) Inherit(string) (loaders.Loader, error) { return s, nil }

var tags = exec.NewControlStructureSet(map[string]parser.ControlStructureParser{}).
	Update(controlStructures.All).
	Update(exec.NewControlStructureSet(map[string]parser.ControlStructureParser{"generation": parseGeneration}))

var filters = exec.NewFilterSet(map[string]exec.FilterFunction{}).
	Update(builtins.Filters).
	Update(exec.NewFilterSet(map[string]exec.FilterFunction{"tojson": filterToJSON, "items": filterItems}))

var tests = exec.NewTestSet(map[string]exec.TestFunction{}).
	Update(builtins.Tests).
	Update(exec.NewTestSet(map[string]exec.TestFunction{
		"true":     isBool(true),
		"false":    isBool(false),
		"iterable": isSequence,
		"sequence": isSequence,
	}))

// isBool is jinja2's "is true": the value True itself, not what counts as true.
func isBool(want bool) exec.TestFunction {
	return func(_ *exec.Context, in *exec.Value, _ *exec.VarArgs) (bool, error) {
		return in.IsBool() && in.Bool() == want, nil
	}
}

// isSequence holds for strings and dicts too: in Python all three have a length and items.
func isSequence(_ *exec.Context, in *exec.Value, _ *exec.VarArgs) (bool, error) {
	return !in.IsNil() && (in.IsList() || in.IsString() || in.IsDict()), nil
}

var methods = func() exec.Methods {
	m := builtins.Methods
	m.Dict = exec.NewMethodSet(map[string]exec.Method[map[string]any]{
		"items": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
			return dictItems(self), nil
		},
		"keys": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
			return self.Keys(), nil
		},
		"values": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
			values := exec.ValuesList{}
			for _, p := range dictPairs(self) {
				values = append(values, p.Value)
			}
			return values, nil
		},
		"get": func(_ map[string]any, self *exec.Value, args *exec.VarArgs) (any, error) {
			if n := len(args.Args); n < 1 || n > 2 {
				return nil, fmt.Errorf("get takes one or two arguments, not %d", n)
			}
			if v, ok := self.GetItem(args.Args[0].Interface()); ok {
				return exec.ToValue(v).Interface(), nil
			}
			if len(args.Args) == 2 {
				return args.Args[1].Interface(), nil
			}
			return nil, nil
		},
	})
	return m
}()

func dictItems(v *exec.Value) exec.ValuesList {
	items := exec.ValuesList{}
	for _, p := range dictPairs(v) {
		items = append(items, exec.AsValue(exec.ValuesList{p.Key, p.Value}))
	}
	return items
}

func filterItems(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() || in.IsNil() {
		return exec.AsValue(exec.ValuesList{})
	}
	return exec.AsValue(dictItems(in))
}

// filterToJSON is tojson as transformers defines it, on top of json.dumps.
func filterToJSON(_ *exec.Evaluator, in *exec.Value, args *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	style, err := jsonStyleOf(args)
	if err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	v, err := fromEngine(in)
	if err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	s, err := pyJSON(v, style)
	if err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	return exec.AsSafeValue(s)
}

// jsonStyleOf reads the arguments ensure_ascii, indent, separators, sort_keys.
func jsonStyleOf(args *exec.VarArgs) (s jsonStyle, err error) {
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	if len(args.Args) > len(names) {
		return s, fmt.Errorf("%d arguments instead of at most %d", len(args.Args), len(names))
	}
	given := map[string]*exec.Value{}
	for i, v := range args.Args {
		given[names[i]] = v
	}
	for name, v := range args.KwArgs {
		given[name] = v
	}
	for name, v := range given {
		switch name {
		case "ensure_ascii":
			s.ensureASCII = v.IsTrue()
		case "sort_keys":
			s.sortKeys = v.IsTrue()
		case "indent":
			switch {
			case v.IsNil():
			case v.IsInteger():
				s.multiline, s.indent = true, strings.Repeat(" ", min(max(v.Integer(), 0), 64))
			case v.IsString():
				s.multiline, s.indent = true, v.String()
			default:
				return s, fmt.Errorf("indent %s is neither a number nor a string", v)
			}
		case "separators":
			if v.IsNil() {
				continue
			}
			if !v.IsList() || v.Len() != 2 {
				return s, fmt.Errorf("separators %s are not a pair", v)
			}
			s.item = exec.ToValue(v.Index(0).Interface()).String()
			s.key = exec.ToValue(v.Index(1).Interface()).String()
		default:
			return s, fmt.Errorf("unknown argument %s", name)
		}
	}
	return s, nil
}

// pyRange returns a list. (gonja's own range feeds a channel, and leaks a goroutine when a
// loop is left early.)
func pyRange(args *exec.VarArgs) (*exec.Value, error) {
	n := [3]int{0, 0, 1}
	switch len(args.Args) {
	case 1:
		n[1] = args.Args[0].Integer()
	case 2, 3:
		for i, a := range args.Args {
			n[i] = a.Integer()
		}
	default:
		return nil, fmt.Errorf("range takes one to three arguments, not %d", len(args.Args))
	}
	start, stop, step := n[0], n[1], n[2]
	if step == 0 {
		return nil, errors.New("range: step must not be zero")
	}
	if (stop-start)/step > maxRange {
		return nil, fmt.Errorf("range of more than %d numbers", maxRange)
	}
	list := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		list = append(list, i)
	}
	return exec.AsValue(list), nil
}

const maxRange = 100_000 // jinja2's sandbox has the same limit

// generationTag is {% generation %}…{% endgeneration %}: what the model itself writes.
type generationTag struct {
	at   *tokens.Token
	body *nodes.Wrapper
}

// Marks around generation spans, present only while Encode renders. They are noncharacters,
// which no text meant for exchange contains.
const (
	markStart = "\uFDD0"
	markEnd   = "\uFDD1"
	marksVar  = "generation marks" // no Jinja name: templates cannot read or set it
)

func parseGeneration(p, args *parser.Parser) (nodes.ControlStructure, error) {
	tag := &generationTag{at: p.Current()}
	if !args.End() {
		return nil, args.Error("generation takes no arguments", nil)
	}
	body, _, err := p.WrapUntil("endgeneration")
	tag.body = body
	return tag, err
}

func (g *generationTag) Position() *tokens.Token { return g.at }

func (g *generationTag) String() string { return "generation" }

// Execute renders the body.
func (g *generationTag) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	_, marks := r.Environment.Context.Get(marksVar)
	if marks {
		if _, err := io.WriteString(r.Output, markStart); err != nil {
			return err
		}
	}
	if err := r.ExecuteWrapper(g.body); err != nil {
		return err
	}
	if marks {
		_, err := io.WriteString(r.Output, markEnd)
		return err
	}
	return nil
}

// strftime formats t as Python's strftime in the C locale.
func strftime(t time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		layout, ok := strftimeLayouts[format[i]]
		switch {
		case format[i] == '%':
			out.WriteByte('%')
		case format[i] == 'j':
			fmt.Fprintf(&out, "%03d", t.YearDay())
		case !ok:
			return "", fmt.Errorf("strftime: %%%c is not supported", format[i])
		case pad:
			out.WriteString(t.Format(layout))
		default:
			out.WriteString(strings.TrimPrefix(t.Format(layout), "0"))
		}
	}
	return out.String(), nil
}

var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'B': "January", 'b': "Jan", 'd': "02", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'f': "000000", 'z': "-0700", 'Z': "MST",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}
