package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// flagSet are the flags of one command, found under every spelling that people are used to: --max_steps and
// --max-steps, --packing, --packing true and --no_packing.
type flagSet struct {
	flags    []*kong.Flag
	settings bool // a first argument that names a JSON or YAML file stands for the flags in it
	program  bool // the first argument is a program, and what follows is for it
}

func newFlagSet(command *kong.Node) flagSet {
	s := flagSet{settings: command.Tag != nil && command.Tag.Has("settings")}
	for _, argument := range command.Positional {
		s.program = s.program || argument.PassthroughMode != kong.PassThroughModeNone
	}
	for _, group := range command.AllFlags(true) {
		s.flags = append(s.flags, group...)
	}
	return s
}

// find looks a flag up by a name without dashes. negated is true for no_X of a boolean flag X.
func (s flagSet) find(name string) (flag *kong.Flag, negated bool) {
	same := func(a, b string) bool { return strings.ReplaceAll(a, "-", "_") == strings.ReplaceAll(b, "-", "_") }
	for _, f := range s.flags {
		if same(f.Name, name) || slices.ContainsFunc(f.Aliases, func(alias string) bool { return same(alias, name) }) {
			return f, false
		}
		if f.IsBool() && same("no_"+f.Name, name) {
			return f, true
		}
	}
	return nil, false
}

// suggest is the flag that an unknown name was perhaps meant to be, in words for the end of a message.
func (s flagSet) suggest(name string) string {
	best, distance := "", 1+max(2, len(name)/3)
	for _, f := range s.flags {
		for _, known := range append([]string{f.Name}, f.Aliases...) {
			if d := edits(known, name); d < distance && !f.Hidden {
				best, distance = known, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// rewrite turns the arguments of a command into the spelling that kong reads: --name=value for everything that has a
// value. What it does not know it leaves to kong.
func (s flagSet) rewrite(args []string) ([]string, error) {
	var out []string
	given := map[*kong.Flag]bool{}
	var file []setting
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" || s.program && !strings.HasPrefix(arg, "-") {
			out = append(out, args[i:]...)
			break
		}
		if !strings.HasPrefix(arg, "--") {
			if i == 0 && s.settings && isSettingsFile(arg) {
				var err error
				if file, err = readSettings(arg, s); err != nil {
					return nil, err
				}
				continue
			}
			out = append(out, arg)
			continue
		}
		name, value, hasValue := strings.Cut(arg[2:], "=")
		flag, negated := s.find(name)
		if flag == nil {
			return nil, fmt.Errorf("unknown flag --%s%s", name, s.suggest(name))
		}
		given[flag] = true
		next := func() (string, bool) {
			if i+1 < len(args) && !isFlag(args[i+1]) {
				i++
				return args[i], true
			}
			return "", false
		}
		switch {
		case flag.IsBool():
			on := !negated
			if !hasValue && i+1 < len(args) {
				if _, ok := parseBool(args[i+1]); ok {
					i++
					value, hasValue = args[i], true
				}
			}
			if hasValue {
				b, ok := parseBool(value)
				if !ok {
					return nil, fmt.Errorf("--%s: %q is neither true nor false", name, value)
				}
				on = b != negated
			}
			out = append(out, fmt.Sprintf("--%s=%t", flag.Name, on))
			continue
		case !hasValue:
			if value, hasValue = next(); !hasValue {
				value, hasValue = flag.Tag.Get("alone"), flag.Tag.Has("alone") // what the flag means without a value
			}
			if !hasValue {
				return nil, fmt.Errorf("--%s: its value is missing", name)
			}
			for flag.IsSlice() {
				more, ok := next()
				if !ok {
					break
				}
				value += "," + more
			}
		}
		out = append(out, "--"+flag.Name+"="+value)
	}
	// The file's settings come first in time and last in rank: flags on the command line win.
	var first []string
	for _, setting := range file {
		if !given[setting.flag] {
			first = append(first, "--"+setting.flag.Name+"="+setting.value)
		}
	}
	return append(first, out...), nil
}

// isFlag tells a flag from a value such as -1.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !strings.ContainsAny(arg[1:2], "0123456789.")
}

// parseBool reads the words that transformers takes for a boolean.
func parseBool(word string) (value, ok bool) {
	switch strings.ToLower(word) {
	case "true", "yes", "y", "t", "1":
		return true, true
	case "false", "no", "n", "f", "0":
		return false, true
	}
	return false, false
}

// edits is the Levenshtein distance of two names.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := i
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
