package peft

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/dlclark/regexp2/v2"
)

// Patterns is an ordered table from regular expressions, which match the end of a layer's name, to numbers: PEFT's
// rank_pattern and alpha_pattern. The first match counts.
type Patterns []Pattern

// Pattern is an entry of Patterns.
type Pattern struct {
	Key   string
	Value float64
}

// MarshalJSON writes an object in the table's order.
func (p Patterns) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(e.Key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.WriteString(strconv.FormatFloat(e.Value, 'g', -1, 64))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads an object and keeps its order.
func (p *Patterns) UnmarshalJSON(data []byte) error {
	*p = nil
	d := json.NewDecoder(bytes.NewReader(data))
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t == nil {
		return nil
	}
	if t != json.Delim('{') {
		return fmt.Errorf("expected an object, got %v", t)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value float64
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%v: %w", key, err)
		}
		*p = append(*p, Pattern{key.(string), value})
	}
	_, err = d.Token()
	return err
}

// lookup is the value of the first pattern that matches the name, or otherwise.
func (p Patterns) lookup(name string, otherwise float64) (float64, error) {
	for _, e := range p {
		ok, err := fullMatch(`(.*\.)?(`+e.Key+`)`, name)
		if err != nil {
			return 0, err
		}
		if ok {
			return e.Value, nil
		}
	}
	return otherwise, nil
}

// fullMatch matches the whole of s, by the rules of Python's re.
func fullMatch(pattern, s string) (bool, error) {
	re, err := regexp2.Compile(`\A(?:`+pattern+`)\z`, regexp2.None)
	if err != nil {
		return false, fmt.Errorf("regular expression %q: %w", pattern, err)
	}
	return re.MatchString(s)
}

// Modules names layers: a list of names, of which each stands for the layers whose path it is or ends, or one regular
// expression for whole paths. AllLinear is every linear layer.
type Modules struct {
	Names  []string
	Regexp string
}

// AllLinear names every linear layer except the output head.
var AllLinear = Modules{Regexp: "all-linear"}

// Targets names layers by their last path components, e.g. Targets("q_proj", "v_proj").
func Targets(names ...string) Modules { return Modules{Names: names} }

// MarshalJSON writes a list or a string.
func (m Modules) MarshalJSON() ([]byte, error) {
	switch {
	case m.Regexp != "":
		return json.Marshal(m.Regexp)
	case m.Names != nil:
		return json.Marshal(m.Names)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads a list, a string or null.
func (m *Modules) UnmarshalJSON(data []byte) error {
	*m = Modules{}
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &m.Regexp)
	}
	return json.Unmarshal(data, &m.Names)
}

func (m Modules) empty() bool { return m.Regexp == "" && len(m.Names) == 0 }

func (m Modules) match(name string) (bool, error) {
	switch {
	case m.Regexp == AllLinear.Regexp:
		return true, nil
	case m.Regexp != "":
		return fullMatch(m.Regexp, name)
	}
	for _, n := range m.Names {
		if name == n || strings.HasSuffix(name, "."+n) {
			return true, nil
		}
	}
	return false, nil
}

// layerIndex finds the number that follows the list named by pattern in a layer's path.
func layerIndex(pattern, name string) (index int, ok bool, err error) {
	re, err := regexp2.Compile(`\A.*\.(?:`+pattern+`)\.(\d+)\.`, regexp2.None)
	if err != nil {
		return 0, false, fmt.Errorf("regular expression %q: %w", pattern, err)
	}
	m, err := re.FindStringMatch(name)
	if m == nil || err != nil {
		return 0, false, err
	}
	index, err = strconv.Atoi(m.GroupByNumber(1).String())
	return index, err == nil, err
}
