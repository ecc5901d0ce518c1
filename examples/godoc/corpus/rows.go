package corpus

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode/utf8"
)

// Options of Rows. The zero value takes every symbol and evaluates on a tenth.
type Options struct {
	// EvalFraction is the share of symbols that are held out; 0 means 0.1.
	EvalFraction float64
	// MaxAnswerChars bounds an answer; 0 means 400, about 130 tokens. Symbols whose first sentence is longer are left out.
	MaxAnswerChars int
	// MaxRows bounds training and evaluation rows together; 0 means no bound.
	MaxRows int
	// Seed chooses the split, the order and the wording of the questions.
	Seed uint64
}

// Message is one turn, in the field names of chat JSONL.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Row is one line of chat JSONL.
type Row struct {
	Messages []Message `json:"messages"`
}

// phrasings of the questions by kind of symbol; %s is the qualified name.
var phrasings = map[string][]string{
	"package": {
		"What is the Go package %s for?",
		"Describe the standard library package %s.",
		"What does package %s provide?",
	},
	"func": {
		"What does %s do in Go?",
		"Explain the Go function %s.",
		"How is %s declared, and what does it do?",
		"Give the signature of %s and say what it does.",
	},
	"method": {
		"What does the method %s do in Go?",
		"Explain the Go method %s.",
		"How is %s declared, and what does it do?",
		"Give the signature of %s and say what it does.",
	},
	"type": {
		"What is the Go type %s?",
		"What does the type %s represent in Go?",
		"Explain the type %s of the standard library.",
	},
	"const": {
		"What does the Go constant %s mean?",
		"Explain the constant %s.",
	},
	"var": {
		"What is the Go variable %s?",
		"Explain the variable %s.",
	},
}

// Question asks for a symbol; the seed chooses among several phrasings.
func Question(s Symbol, seed uint64) string {
	list := phrasings[s.Kind]
	name := s.Qualified()
	if s.Ambiguous {
		name += " of package " + s.Package
	}
	return fmt.Sprintf(list[hash("phrasing", s, seed)%uint64(len(list))], name)
}

// Answer is the signature, as many leading paragraphs as fit into maxChars characters, and the address of the page. ok is
// false where not even the first sentence fits.
func Answer(s Symbol, maxChars int) (answer string, ok bool) {
	head, tail := "`"+s.Signature+"`", "See "+s.URL()
	room := maxChars - utf8.RuneCountInString(head) - utf8.RuneCountInString(tail) - len("\n\n")
	var body []string
	for i, p := range s.Doc {
		p, whole := fit(p, room)
		if p == "" || i > 0 && !whole {
			break
		}
		body = append(body, p)
		room -= utf8.RuneCountInString(p) + len("\n\n")
		if !whole {
			break
		}
	}
	if len(body) == 0 {
		return "", false
	}
	return head + "\n\n" + strings.Join(body, "\n\n") + "\n\n" + tail, true
}

// fit returns as many leading sentences of a paragraph as fit into room characters, and whether that is all of it. A
// last sentence that ends in a colon announces something that is not part of the answer, and is left out.
func fit(p string, room int) (text string, whole bool) {
	if utf8.RuneCountInString(p)+len("\n\n") <= room && !strings.HasSuffix(p, ":") {
		return p, true
	}
	end := 0
	for i := range p {
		if utf8.RuneCountInString(p[:i])+len("\n\n") > room {
			break
		}
		if p[i] == ' ' && sentenceEnds(p[:i]) {
			end = i
		}
	}
	return p[:end], false
}

func sentenceEnds(p string) bool {
	return strings.HasSuffix(p, ".") && !strings.HasSuffix(p, "e.g.") && !strings.HasSuffix(p, "i.e.")
}

// Rows makes training and evaluation rows. No symbol is in both, and rows are in an order that mixes the packages, so
// that any prefix is a fair sample.
func Rows(symbols []Symbol, opts Options) (train, eval []Row, err error) {
	if opts.EvalFraction == 0 {
		opts.EvalFraction = 0.1
	}
	if opts.MaxAnswerChars == 0 {
		opts.MaxAnswerChars = 400
	}
	if !(opts.EvalFraction > 0 && opts.EvalFraction < 1) {
		return nil, nil, fmt.Errorf("corpus: the evaluation fraction is %v; want a share between 0 and 1", opts.EvalFraction)
	}
	if opts.MaxAnswerChars < 0 || opts.MaxRows < 0 {
		return nil, nil, fmt.Errorf("corpus: %d answer characters and %d rows: want no negative bound", opts.MaxAnswerChars, opts.MaxRows)
	}
	type entry struct {
		row  Row
		rank uint64
		eval bool
	}
	var entries []entry
	seen := map[string]bool{}
	for _, s := range symbols {
		answer, ok := Answer(s, opts.MaxAnswerChars)
		if !ok || seen[s.Package+"\x00"+s.Name] {
			continue
		}
		seen[s.Package+"\x00"+s.Name] = true
		entries = append(entries, entry{
			row:  Row{[]Message{{"user", Question(s, opts.Seed)}, {"assistant", answer}}},
			rank: hash("order", s, opts.Seed),
			eval: float64(hash("split", s, opts.Seed))/(1<<64) < opts.EvalFraction,
		})
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		switch {
		case a.rank < b.rank:
			return -1
		case a.rank > b.rank:
			return 1
		}
		return 0
	})
	if opts.MaxRows > 0 {
		entries = entries[:min(opts.MaxRows, len(entries))]
	}
	for _, e := range entries {
		if e.eval {
			eval = append(eval, e.row)
		} else {
			train = append(train, e.row)
		}
	}
	if len(train) == 0 || len(eval) == 0 {
		return nil, nil, fmt.Errorf("corpus: %d symbols give %d training and %d evaluation rows; want some of both: raise the number of rows",
			len(symbols), len(train), len(eval))
	}
	return train, eval, nil
}

// JSONL renders rows, one line each.
func JSONL(rows []Row) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, row := range rows {
		if err := enc.Encode(row); err != nil {
			return nil, fmt.Errorf("corpus: %w", err)
		}
	}
	return []byte(b.String()), nil
}

// hash is a stable pseudo-random number for a symbol and a purpose.
func hash(purpose string, s Symbol, seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%d\x00%s\x00%s", purpose, seed, s.Package, s.Name)
	x := h.Sum64()
	// FNV mixes its high bits little for short inputs; one round of splitmix64 does.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
