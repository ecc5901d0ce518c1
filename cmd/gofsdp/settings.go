package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// setting is one entry of a settings file.
type setting struct {
	key   string
	line  int
	value string // as it would be written on the command line
	null  bool
	flag  *kong.Flag
}

// isSettingsFile tells whether an argument names a file that stands for flags.
func isSettingsFile(arg string) bool {
	return slices.Contains([]string{".json", ".yaml", ".yml"}, strings.ToLower(filepath.Ext(arg)))
}

// readSettings reads a flat JSON object or YAML mapping from the names of flags to their values, as the programs of
// transformers and TRL take it. null leaves a flag at its default. All unknown keys are reported together.
func readSettings(path string, s flagSet) ([]setting, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	parse := parseYAML
	if strings.EqualFold(filepath.Ext(path), ".json") {
		parse = parseJSON
	}
	all, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var list []setting
	var faults []error
	lines := map[*kong.Flag]int{}
	for _, e := range all {
		bad := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s:%d: %s", path, e.line, fmt.Sprintf(format, args...)))
		}
		negated := false
		e.flag, negated = s.find(e.key)
		switch {
		case e.flag == nil || negated:
			bad("unknown key %s%s", e.key, s.suggest(e.key))
			continue
		case lines[e.flag] > 0:
			bad("%s is set already in line %d", e.key, lines[e.flag])
			continue
		case e.null:
			continue
		}
		lines[e.flag] = e.line
		if e.flag.IsBool() {
			b, ok := parseBool(e.value)
			if !ok {
				bad("%s: %q is neither true nor false", e.key, e.value)
			}
			e.value = fmt.Sprint(b)
		}
		list = append(list, e)
	}
	return list, errors.Join(faults...)
}

// parseJSON keeps order, lines and the spelling of numbers.
func parseJSON(data []byte) ([]setting, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	line := func() int { return 1 + bytes.Count(data[:d.InputOffset()], []byte("\n")) }
	fail := func(err error) ([]setting, error) { return nil, fmt.Errorf("line %d: %w", line(), err) }
	if start, err := d.Token(); err != nil {
		return fail(err)
	} else if start != json.Delim('{') {
		return fail(errors.New("want an object { … } of flags"))
	}
	var list []setting
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return fail(err)
		}
		e := setting{key: key.(string), line: line()}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return fail(err)
		}
		var words []json.RawMessage
		switch {
		case raw[0] == '{':
			return fail(fmt.Errorf("%s: want a value or a list of values", e.key))
		case raw[0] != '[':
			words = []json.RawMessage{raw}
		default:
			if err := json.Unmarshal(raw, &words); err != nil {
				return fail(err)
			}
		}
		e.null = string(raw) == "null"
		var texts []string
		for _, word := range words {
			text := string(word) // a number, true, false
			if word[0] == '"' {
				if err := json.Unmarshal(word, &text); err != nil {
					return fail(err)
				}
			} else if word[0] == '[' || word[0] == '{' {
				return fail(fmt.Errorf("%s: want a value or a list of values", e.key))
			}
			texts = append(texts, text)
		}
		e.value = strings.Join(texts, ",")
		list = append(list, e)
	}
	if _, err := d.Token(); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fail(errors.New("more than one value"))
	}
	return list, nil
}

// parseYAML keeps order, lines and the spelling of numbers.
func parseYAML(data []byte) (list []setting, err error) {
	defer func() { // the YAML parser has panicked on malformed text before
		if r := recover(); r != nil {
			list, err = nil, fmt.Errorf("malformed YAML: %v", r)
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("malformed YAML: %w", err)
	}
	documents := 0
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		if documents++; documents > 1 {
			return nil, errors.New("more than one YAML document")
		}
		var pairs []*ast.MappingValueNode
		switch n := doc.Body.(type) {
		case *ast.MappingNode:
			pairs = n.Values
		case *ast.MappingValueNode:
			pairs = []*ast.MappingValueNode{n}
		default:
			return nil, fmt.Errorf("line %d: want a mapping of flags", doc.Body.GetToken().Position.Line)
		}
		for _, pair := range pairs {
			e := setting{key: pair.Key.GetToken().Value, line: pair.Key.GetToken().Position.Line}
			words := []ast.Node{pair.Value}
			if sequence, ok := pair.Value.(*ast.SequenceNode); ok {
				words = sequence.Values
			}
			e.null = pair.Value.Type() == ast.NullType
			var texts []string
			for _, word := range words {
				switch n := word.(type) {
				case *ast.StringNode:
					texts = append(texts, n.Value)
				case *ast.LiteralNode:
					texts = append(texts, n.Value.Value)
				case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
					texts = append(texts, n.GetToken().Value)
				case *ast.NullNode:
				default:
					return nil, fmt.Errorf("line %d: %s: want a value or a list of values", e.line, e.key)
				}
			}
			e.value = strings.Join(texts, ",")
			list = append(list, e)
		}
	}
	return list, nil
}
