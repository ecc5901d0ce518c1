package tokenizer

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"unicode/utf8"
)

// bpe is the byte-pair-encoding model: it merges the symbols of a word by merge rank.
//
// With byteLevel the file spells each byte as a printable character. The spelling is undone
// when the model is loaded, so words are merged as the bytes they are.
type bpe struct {
	byteLevel    bool
	vocab        map[string]int32 // whole words; raw bytes if byteLevel
	bytes        [256]int32       // byteLevel: id of each byte; else ids of <0xXX>; -1 if missing
	merges       map[pair]merge
	unk          int32 // -1: characters without a token are dropped (a neighbour's span covers them)
	fuseUnk      bool
	byteFallback bool
	ignoreMerges bool
	cache        wordCache
}

type pair struct{ left, right int32 }

type merge struct{ rank, id int32 }

// symbol is a token and the number of bytes of the word it covers.
type symbol struct{ id, n int32 }

// bpeScratch is reused from word to word of one Encode call.
type bpeScratch struct {
	symbols []symbol
	ranks   []merge
}

// tokenize returns the tokens of a word. The result may be shared: it must not be changed,
// nor kept past the next call with the same scratch.
func (m *bpe) tokenize(word string, b *bpeScratch) []symbol {
	if got, ok := m.cache.get(word); ok {
		return got
	}
	if m.ignoreMerges {
		if id, ok := m.vocab[word]; ok {
			return m.cache.put(word, []symbol{{id, int32(len(word))}})
		}
	}
	b.symbols = m.symbols(word, b.symbols[:0])
	if len(b.symbols) <= quadraticLimit {
		b.symbols = m.mergeShort(b.symbols, b)
	} else {
		b.symbols = m.mergeLong(b.symbols)
	}
	return m.cache.put(word, b.symbols)
}

// symbols splits a word into the symbols that merging starts from.
func (m *bpe) symbols(word string, out []symbol) []symbol {
	dropped := int32(0) // bytes before the first symbol
	unknown := func(n int32) {
		last := len(out) - 1
		switch {
		case m.unk < 0 && last < 0:
			dropped += n
		case m.unk < 0 || m.fuseUnk && last >= 0 && out[last].id == m.unk:
			out[last].n += n
		default:
			out = append(out, symbol{m.unk, n})
		}
	}
	if m.byteLevel {
		for i := range len(word) {
			if id := m.bytes[word[i]]; id >= 0 {
				out = append(out, symbol{id, 1})
			} else {
				unknown(1)
			}
		}
	} else {
		for i, r := range word {
			n := utf8.RuneLen(r)
			if id, ok := m.vocab[word[i:i+n]]; ok {
				out = append(out, symbol{id, int32(n)})
			} else if m.byteFallback && m.hasBytes(word[i:i+n]) {
				for j := range n {
					out = append(out, symbol{m.bytes[word[i+j]], 1})
				}
			} else {
				unknown(int32(n))
			}
		}
	}
	if len(out) > 0 {
		out[0].n += dropped
	}
	return out
}

func (m *bpe) hasBytes(s string) bool {
	for i := range len(s) {
		if m.bytes[s[i]] < 0 {
			return false
		}
	}
	return true
}

// quadraticLimit is the word length up to which a scan beats the heap.
const quadraticLimit = 96

// mergeShort repeatedly merges the leftmost pair of lowest rank.
func (m *bpe) mergeShort(s []symbol, b *bpeScratch) []symbol {
	ranks := b.ranks[:0]
	for i := 1; i < len(s); i++ {
		ranks = append(ranks, m.rank(s[i-1], s[i]))
	}
	for {
		best := -1
		for i, r := range ranks {
			if r.id >= 0 && (best < 0 || r.rank < ranks[best].rank) {
				best = i
			}
		}
		if best < 0 {
			b.ranks = ranks
			return s
		}
		s[best] = symbol{ranks[best].id, s[best].n + s[best+1].n}
		s = append(s[:best+1], s[best+2:]...)
		ranks = append(ranks[:best], ranks[best+1:]...)
		if best > 0 {
			ranks[best-1] = m.rank(s[best-1], s[best])
		}
		if best+1 < len(s) {
			ranks[best] = m.rank(s[best], s[best+1])
		}
	}
}

// rank looks a pair up; id is -1 if it does not merge.
func (m *bpe) rank(a, b symbol) merge {
	if r, ok := m.merges[pair{a.id, b.id}]; ok {
		return r
	}
	return merge{id: -1}
}

// mergeLong does the same in O(n log n) with a heap over a linked list.
func (m *bpe) mergeLong(s []symbol) []symbol {
	type link struct{ prev, next int32 }
	links := make([]link, len(s))
	for i := range links {
		links[i] = link{int32(i) - 1, int32(i) + 1}
	}
	links[len(s)-1].next = -1
	var h mergeHeap
	push := func(i int32) {
		if i < 0 || links[i].next < 0 {
			return
		}
		if r := m.rank(s[i], s[links[i].next]); r.id >= 0 {
			h.push(candidate{r, i})
		}
	}
	for i := range s {
		push(int32(i))
	}
	for len(h) > 0 {
		c := h.pop()
		i := c.at
		j := links[i].next
		// Either neighbour may have changed since the candidate was made.
		if s[i].n == 0 || j < 0 || m.rank(s[i], s[j]) != c.merge {
			continue
		}
		s[i] = symbol{c.id, s[i].n + s[j].n}
		s[j].n = 0
		links[i].next = links[j].next
		if links[j].next >= 0 {
			links[links[j].next].prev = i
		}
		push(links[i].prev)
		push(i)
	}
	out := s[:0]
	for _, sym := range s {
		if sym.n > 0 {
			out = append(out, sym)
		}
	}
	return out
}

// candidate is a possible merge of the symbol at a position with its right neighbour.
type candidate struct {
	merge
	at int32
}

func (c candidate) less(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// mergeHeap is a binary min-heap.
type mergeHeap []candidate

func (h *mergeHeap) push(c candidate) {
	*h = append(*h, c)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].less(s[up]) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (h *mergeHeap) pop() candidate {
	s := *h
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		small := 2*i + 1
		if small >= last {
			return top
		}
		if small+1 < last && s[small+1].less(s[small]) {
			small++
		}
		if !s[small].less(s[i]) {
			return top
		}
		s[i], s[small] = s[small], s[i]
		i = small
	}
}

// wordCache remembers the tokens of short words. It is split into shards, each with its own
// lock and bound; a full shard starts over.
type wordCache struct {
	seed   maphash.Seed
	shards [16]struct {
		sync.RWMutex
		words map[string][]symbol
	}
}

const (
	maxCachedWord    = 128  // bytes
	maxWordsPerShard = 4096 // 65,536 words in all, some 10 MB when full
)

func (c *wordCache) get(word string) ([]symbol, bool) {
	if len(word) > maxCachedWord {
		return nil, false
	}
	s := &c.shards[maphash.String(c.seed, word)%uint64(len(c.shards))]
	s.RLock()
	got, ok := s.words[word]
	s.RUnlock()
	return got, ok
}

func (c *wordCache) put(word string, tokens []symbol) []symbol {
	if len(word) > maxCachedWord {
		return tokens
	}
	tokens = append(make([]symbol, 0, len(tokens)), tokens...)
	word = strings.Clone(word) // do not keep the whole text alive
	s := &c.shards[maphash.String(c.seed, word)%uint64(len(c.shards))]
	s.Lock()
	defer s.Unlock()
	if s.words == nil || len(s.words) >= maxWordsPerShard {
		s.words = make(map[string][]symbol)
	}
	s.words[word] = tokens
	return tokens
}

// byteToRune is the printable spelling of each byte in byte-level vocabularies (GPT-2):
// printable Latin-1 stands for itself, the rest is moved to U+0100 and up.
var byteToRune, runeToByte = func() (to [256]rune, from map[rune]byte) {
	from = make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !('!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ') {
			r = next
			next++
		}
		to[b] = r
		from[r] = byte(b)
	}
	return to, from
}()

// rawBytes undoes the byte-level spelling; ok is false if s holds any other character.
func rawBytes(s string) (raw string, ok bool) {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := runeToByte[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}

// byteTokenName is the spelling of a byte in vocabularies with byte fallback.
func byteTokenName(b byte) string { return fmt.Sprintf("<0x%02X>", b) }
