package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is one entry of added_tokens in tokenizer.json.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// addedTokens holds the two sets: those looked for in the raw text and those looked for
// in the normalised text between them.
type addedTokens struct {
	raw, normalized addedMatcher
	special         map[int32]bool
}

// addedMatcher finds the leftmost, then longest, added token.
type addedMatcher struct {
	root   *trieNode
	first  [256]*trieNode // root.next, without the cost of a map for every byte of text
	tokens map[int32]addedToken
}

type trieNode struct {
	next map[byte]*trieNode
	id   int32 // -1: no token ends here
}

func (m *addedMatcher) add(spelling string, id int32, tok addedToken) {
	if m.root == nil {
		m.root = &trieNode{id: -1}
		m.tokens = map[int32]addedToken{}
	}
	node := m.root
	for i := range len(spelling) {
		child := node.next[spelling[i]]
		if child == nil {
			child = &trieNode{id: -1}
			if node.next == nil {
				node.next = map[byte]*trieNode{}
			}
			node.next[spelling[i]] = child
			if node == m.root {
				m.first[spelling[i]] = child
			}
		}
		node = child
	}
	node.id = id
	m.tokens[id] = tok
}

// find returns the first match in s at or after from, or start < 0.
func (m *addedMatcher) find(s string, from int) (start, end int, id int32) {
	for i := from; i < len(s); i++ {
		node := m.first[s[i]]
		if node == nil {
			continue
		}
		end = -1
		for j := i + 1; node != nil; j++ {
			if node.id >= 0 {
				end, id = j, node.id
			}
			if j == len(s) {
				break
			}
			node = node.next[s[j]]
		}
		if end >= 0 {
			return i, end, id
		}
	}
	return -1, -1, -1
}

// split cuts the added tokens out of p: token gets those, rest gets what lies between.
func (m *addedMatcher) split(p piece, token func(int32, piece), rest func(piece) error) error {
	s := p.text
	done := 0
	if m.root != nil {
		for at := 0; at < len(s); {
			start, end, id := m.find(s, at)
			if start < 0 {
				break
			}
			at = end
			tok := m.tokens[id]
			if tok.SingleWord && (endsWithWord(s[:start]) || startsWithWord(s[end:])) {
				continue
			}
			if tok.LStrip {
				start = len(strings.TrimRightFunc(s[:start], unicode.IsSpace))
			}
			if tok.RStrip {
				end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
			}
			start = max(start, done)
			if start > done {
				if err := rest(p.slice(done, start)); err != nil {
					return err
				}
			}
			token(id, p.slice(start, end))
			done = end
			at = max(at, end)
		}
	}
	if done < len(s) {
		return rest(p.slice(done, len(s)))
	}
	return nil
}

func endsWithWord(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return s != "" && isWord(r)
}

func startsWithWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s != "" && isWord(r)
}

// isWord is Unicode's \w (UTS #18).
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control)
}

// addTokens registers the added tokens of tokenizer.json. A token that the model's
// vocabulary holds keeps the id it has there.
func (t *Tokenizer) addTokens(list []addedToken) error {
	t.added = &addedTokens{special: map[int32]bool{}}
	for i, tok := range list {
		if tok.Content == "" {
			continue
		}
		id, known := t.ids[tok.Content]
		if !known {
			if tok.ID < 0 || tok.ID > maxTokenID {
				return fmt.Errorf("added_tokens[%d] %q: id %d is outside 0..%d", i, tok.Content, tok.ID, maxTokenID)
			}
			id = int32(tok.ID)
			if err := t.define(tok.Content, id); err != nil {
				return fmt.Errorf("added_tokens[%d]: %w", i, err)
			}
		}
		if tok.Special {
			t.added.special[id] = true
		}
		if !tok.Normalized {
			t.added.raw.add(tok.Content, id, tok)
			continue
		}
		p := piece{text: tok.Content}
		for _, n := range t.norm {
			var err error
			if p, err = n.normalize(p); err != nil {
				return fmt.Errorf("added_tokens[%d] %q: %w", i, tok.Content, err)
			}
		}
		if p.text != "" {
			t.added.normalized.add(p.text, id, tok)
			t.tokens[id] = p.text // decoding gives what was matched
		}
	}
	return nil
}

// define gives a new token its id.
func (t *Tokenizer) define(token string, id int32) error {
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, "")
	}
	if other := t.tokens[id]; other != "" && other != token {
		return fmt.Errorf("tokens %q and %q have the same id %d", other, token, id)
	}
	t.tokens[id] = token
	t.ids[token] = id
	return nil
}
