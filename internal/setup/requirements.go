package setup

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// requirement is one Requires-Dist line of a wheel's METADATA (packaging.python.org, "Dependency specifiers").
type requirement struct {
	name    string   // normalised, see normalise
	extras  []string // of the required package
	clauses []clause // all of them must hold
	marker  string   // "" always applies
}

// clause is one comparison of a version specifier, such as >=13.0 or ==13.1.1.3.*.
type clause struct{ op, version string }

// environment gives the marker variables their values.
type environment map[string]string

// targetEnvironment is Linux on a machine of Go's name goarch, with the Python that the wheels are picked for.
func targetEnvironment(goarch string) environment {
	return environment{
		"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machineName(goarch),
		"platform_python_implementation": "CPython", "implementation_name": "cpython",
		"python_version": "3.11", "python_full_version": "3.11.0", "extra": "",
	}
}

var nameSeparators = regexp.MustCompile(`[-_.]+`)

// normalise is the spelling of a package's name under which an index knows it.
func normalise(name string) string {
	return strings.ToLower(nameSeparators.ReplaceAllString(name, "-"))
}

// parseRequirements reads the Requires-Dist lines of a METADATA file, whose header ends at the first empty line.
func parseRequirements(metadata []byte) ([]requirement, error) {
	var out []requirement
	for line := range strings.Lines(string(metadata)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if text, ok := strings.CutPrefix(line, "Requires-Dist:"); ok {
			r, err := parseRequirement(text)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

var (
	requirementForm = regexp.MustCompile(`^\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;()@]*)\)?\s*(?:;\s*(.*?))?\s*$`)
	clauseForm      = regexp.MustCompile(`^(===|==|!=|~=|<=|>=|<|>)\s*([\w.*+!-]+)$`)
)

func parseRequirement(text string) (requirement, error) {
	found := requirementForm.FindStringSubmatch(text)
	if found == nil {
		return requirement{}, fmt.Errorf("requirement %q is not of the form NAME[EXTRAS] VERSIONS; MARKER", text)
	}
	r := requirement{name: normalise(found[1]), marker: found[4]}
	for _, extra := range strings.FieldsFunc(found[2], func(c rune) bool { return c == ',' || c == ' ' }) {
		r.extras = append(r.extras, normalise(extra))
	}
	for part := range strings.SplitSeq(found[3], ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		c := clauseForm.FindStringSubmatch(part)
		if c == nil {
			return requirement{}, fmt.Errorf("requirement %q: %q is no version specifier", text, part)
		}
		r.clauses = append(r.clauses, clause{c[1], c[2]})
	}
	return r, nil
}

// applies evaluates the marker, once for each of the extras that are asked for (or for none).
func (r requirement) applies(env environment, extras []string) (bool, error) {
	if r.marker == "" {
		return true, nil
	}
	if len(extras) == 0 {
		extras = []string{""}
	}
	for _, extra := range extras {
		m := markerParser{tokens: markerTokens.FindAllString(r.marker, -1), env: env, extra: extra}
		ok, err := m.or()
		if err == nil && len(m.tokens) > 0 {
			err = fmt.Errorf("unexpected %q", m.tokens[0])
		}
		if err != nil {
			return false, fmt.Errorf("marker %q of %s: %w", r.marker, r.name, err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

var markerTokens = regexp.MustCompile(`"[^"]*"|'[^']*'|[()]|===|==|!=|~=|<=|>=|<|>|\w+|\S`)

// markerParser evaluates while it reads: or joins and, and joins comparisons or brackets.
type markerParser struct {
	tokens []string
	env    environment
	extra  string
}

func (m *markerParser) take() string {
	if len(m.tokens) == 0 {
		return ""
	}
	first := m.tokens[0]
	m.tokens = m.tokens[1:]
	return first
}

func (m *markerParser) peek(want string) bool { return len(m.tokens) > 0 && m.tokens[0] == want }

func (m *markerParser) or() (bool, error) {
	value, err := m.and()
	for err == nil && m.peek("or") {
		m.take()
		var right bool
		right, err = m.and()
		value = value || right
	}
	return value, err
}

func (m *markerParser) and() (bool, error) {
	value, err := m.comparison()
	for err == nil && m.peek("and") {
		m.take()
		var right bool
		right, err = m.comparison()
		value = value && right
	}
	return value, err
}

func (m *markerParser) comparison() (bool, error) {
	if m.peek("(") {
		m.take()
		value, err := m.or()
		if closing := m.take(); err == nil && closing != ")" {
			err = fmt.Errorf("unexpected %q, want a closing bracket", closing)
		}
		return value, err
	}
	left, err := m.operand()
	if err != nil {
		return false, err
	}
	op := m.take()
	if op == "not" {
		op += " " + m.take()
	}
	right, err := m.operand()
	if err != nil {
		return false, err
	}
	switch op {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	}
	if !clauseForm.MatchString(op + "1") {
		return false, fmt.Errorf("unknown operator %q", op)
	}
	if versionForm.MatchString(left) && versionForm.MatchString(strings.TrimSuffix(right, ".*")) {
		return clause{op, right}.holds(left), nil
	}
	return map[string]bool{
		"==": left == right, "===": left == right, "!=": left != right,
		"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
	}[op], nil
}

func (m *markerParser) operand() (string, error) {
	word := m.take()
	if len(word) >= 2 && (word[0] == '"' || word[0] == '\'') {
		return word[1 : len(word)-1], nil
	}
	if word == "extra" {
		return m.extra, nil
	}
	value, ok := m.env[word]
	if !ok {
		return "", fmt.Errorf("unknown variable %q", word)
	}
	return value, nil
}

// versionForm are the versions of PEP 440 without epochs.
var versionForm = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)(?:[-_.]?(a|b|rc)[-_.]?(\d*))?(?:[-_.]?(post)[-_.]?(\d*))?(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+[\w.]+)?$`)

// versionKey is what orders a version: its release numbers, then numbers that place pre-, post- and development
// releases around it.
func versionKey(version string) (release, rest []int, ok bool) {
	found := versionForm.FindStringSubmatch(strings.ToLower(version))
	if found == nil {
		return nil, nil, false
	}
	for part := range strings.SplitSeq(found[1], ".") {
		n, _ := strconv.Atoi(part)
		release = append(release, n)
	}
	for len(release) > 1 && release[len(release)-1] == 0 { // 13.0 and 13.0.0 are the same
		release = release[:len(release)-1]
	}
	number := func(text string) int { n, _ := strconv.Atoi(text); return n }
	stage := map[string]int{"a": -3, "b": -2, "rc": -1}[found[2]]
	post, dev := -1, 1<<30
	if found[4] != "" {
		post = number(found[5])
	}
	if found[6] != "" {
		dev = number(found[7])
		if found[2] == "" && found[4] == "" {
			stage = -4 // a development release comes before every other one of its number
		}
	}
	return release, []int{stage, number(found[3]), post, dev}, true
}

// compareVersions orders two versions; one that is none of PEP 440's comes first.
func compareVersions(a, b string) int {
	ar, ak, aok := versionKey(a)
	br, bk, bok := versionKey(b)
	if !aok || !bok {
		return cmp.Compare(strconv.FormatBool(aok), strconv.FormatBool(bok))
	}
	return cmp.Or(slices.Compare(ar, br), slices.Compare(ak, bk))
}

// isPreRelease reports an alpha, beta, candidate or development version, which nobody gets without asking.
func isPreRelease(version string) bool {
	_, rest, ok := versionKey(version)
	return !ok || rest[0] < 0 || rest[3] != 1<<30
}

// holds reports whether version satisfies the clause.
func (c clause) holds(version string) bool {
	public, _, _ := strings.Cut(version, "+")
	if prefix, ok := strings.CutSuffix(c.version, ".*"); ok {
		same := public == prefix || strings.HasPrefix(public, prefix+".")
		return same == (c.op == "==")
	}
	order := compareVersions(public, c.version)
	switch c.op {
	case "===":
		return version == c.version
	case "==":
		return order == 0
	case "!=":
		return order != 0
	case "<=":
		return order <= 0
	case ">=":
		return order >= 0
	case "<":
		return order < 0
	case ">":
		return order > 0
	case "~=": // at least this, within all but its last number
		prefix := c.version[:max(strings.LastIndexByte(c.version, '.'), 0)]
		return order >= 0 && clause{"==", prefix + ".*"}.holds(version)
	}
	return false
}

func (c clause) String() string { return c.op + c.version }
