package tokenizer

// piece is a part of the text on its way through the stages. It remembers where in the
// input its bytes came from: text[0] is at start, unless spans tells each byte's origin.
type piece struct {
	text  string
	start int
	spans []Span // per byte of text; nil while text is a plain slice of the input
}

func (p piece) slice(i, j int) piece {
	q := piece{text: p.text[i:j], start: p.start + i}
	if p.spans != nil {
		q.spans = p.spans[i:j]
	}
	return q
}

// span is the input range of text[i:j].
func (p piece) span(i, j int) Span {
	if p.spans == nil {
		return Span{p.start + i, p.start + j}
	}
	if i == j {
		return p.at(i)
	}
	return Span{p.spans[i].Start, p.spans[j-1].End}
}

// at is the empty input range in front of text[i].
func (p piece) at(i int) Span {
	switch {
	case p.spans == nil:
		return Span{p.start + i, p.start + i}
	case i < len(p.spans):
		return Span{p.spans[i].Start, p.spans[i].Start}
	case len(p.spans) > 0:
		return Span{p.spans[i-1].End, p.spans[i-1].End}
	}
	return Span{p.start, p.start}
}

// rewriter builds a changed copy of a piece and keeps the origin of every byte.
type rewriter struct {
	src   piece
	text  []byte
	spans []Span
}

func newRewriter(p piece) *rewriter {
	return &rewriter{src: p, text: make([]byte, 0, len(p.text)+8), spans: make([]Span, 0, len(p.text)+8)}
}

// keep copies src.text[i:j].
func (w *rewriter) keep(i, j int) {
	w.text = append(w.text, w.src.text[i:j]...)
	for ; i < j; i++ {
		w.spans = append(w.spans, w.src.span(i, i+1))
	}
}

// put writes s in place of src.text[i:j].
func (w *rewriter) put(s string, i, j int) {
	w.text = append(w.text, s...)
	span := w.src.span(i, j)
	for range len(s) {
		w.spans = append(w.spans, span)
	}
}

func (w *rewriter) piece() piece {
	return piece{text: string(w.text), start: w.src.start, spans: w.spans}
}

// prepend puts s in front of p.
func prepend(p piece, s string) piece {
	w := newRewriter(p)
	w.put(s, 0, 0)
	w.keep(0, len(p.text))
	return w.piece()
}
