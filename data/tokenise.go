package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Example is one tokenised row.
type Example struct {
	// IDs are the token ids.
	IDs []int32
	// Labels are as long as IDs: the id where the position counts in the loss, else IgnoreIndex.
	Labels []int32
	// Lengths are the lengths of the sequences that Pack put into the example, which add up to len(IDs). nil means one
	// sequence, or a row of Wrapped packing, whose borders are not kept.
	Lengths []int
}

// Encoders turn text into token ids. Tokenise calls them from TokeniseOptions.Workers goroutines at once. An error that
// wraps ErrNoLabels drops the row; any other ends Tokenise.
type Encoders struct {
	// Chat renders and encodes a conversation. labels tells for each id whether it counts in the loss. It is needed for
	// rows with messages. tools is Row.Tools.
	Chat func(messages []Message, tools []json.RawMessage) (ids []int32, labels []bool, err error)
	// ChatPrompt encodes the messages before an answer, with the header that opens it. It is needed only for rows whose
	// prompt and completion are lists of messages.
	ChatPrompt func(messages []Message, tools []json.RawMessage) (ids []int32, err error)
	// Text encodes plain text, with the special tokens that the model wants in front of it, but no end-of-sequence.
	Text func(text string) (ids []int32, err error)
}

// TokeniseOptions of Tokenise. The zero value truncates nothing and appends no end-of-sequence token.
type TokeniseOptions struct {
	// MaxLength cuts examples to their first MaxLength tokens (truncation_mode keep_start); 0 means no limit.
	MaxLength int
	// EOS are the ids that end a sequence. The first is appended to text and prompt/completion rows that do not already
	// end with one of them. Chat templates write their own.
	EOS []int32
	// PromptLoss counts the prompt of prompt/completion rows in the loss as well (TRL's completion_only_loss false).
	PromptLoss bool
	// MaxRows uses only the first so many rows; 0 means all.
	MaxRows int
	// Workers is the number of goroutines; 0 means 1, which is right for encoders that are not safe for concurrent use.
	Workers int
}

// Stats tells what Tokenise did.
type Stats struct {
	// Rows read, and of them rows dropped because no label was left. A label at the first position does not count:
	// nothing predicts it.
	Rows, Dropped int
	// Truncated rows, and the tokens cut off.
	Truncated     int
	TokensCut     int64
	Tokens, Loss  int64 // tokens kept, and of them positions that count in the loss
	LongestBefore int   // length of the longest row before truncation
}

// ErrNoLabels is returned where not one row of a dataset has a label: nothing could be learned from it. An encoder returns
// it for a single row.
var ErrNoLabels = errors.New("no row has a token that counts in the loss")

// Tokenise encodes every row of d, in order. Rows without a label are dropped and counted. An encoder's error names the
// file and line.
func Tokenise(ctx context.Context, d *Dataset, enc Encoders, opts TokeniseOptions) ([]Example, Stats, error) {
	if err := enc.check(d); err != nil {
		return nil, Stats{}, err
	}
	rows := d.Len()
	if opts.MaxRows > 0 {
		rows = min(rows, opts.MaxRows)
	}
	out := make([]Example, rows)
	cut := make([]int, rows)
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range max(1, opts.Workers) {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= rows {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				row, err := d.Row(i)
				if err != nil {
					return err
				}
				ex, err := enc.encode(row, opts)
				if errors.Is(err, ErrNoLabels) {
					continue // out[i] stays empty, and is counted below
				}
				if err != nil {
					return fmt.Errorf("data: tokenise %s:%d: %w", d.path, d.Line(i), err)
				}
				if n := len(ex.IDs); opts.MaxLength > 0 && n > opts.MaxLength {
					cut[i] = n - opts.MaxLength
					ex.IDs, ex.Labels = slices.Clone(ex.IDs[:opts.MaxLength]), slices.Clone(ex.Labels[:opts.MaxLength])
				}
				out[i] = ex
			}
		})
	}
	if err := g.Wait(); err != nil {
		return nil, Stats{}, err
	}
	stats := Stats{Rows: rows}
	kept := out[:0]
	for i, ex := range out {
		stats.LongestBefore = max(stats.LongestBefore, len(ex.IDs)+cut[i])
		if cut[i] > 0 {
			stats.Truncated++
			stats.TokensCut += int64(cut[i])
		}
		n := ex.lossTokens()
		if n == 0 {
			stats.Dropped++
			continue
		}
		stats.Tokens += int64(len(ex.IDs))
		stats.Loss += int64(n)
		kept = append(kept, ex)
	}
	clear(out[len(kept):])
	if len(kept) == 0 {
		return nil, stats, fmt.Errorf("data: tokenise %s: %w (%d rows, %d truncated to %d tokens): check max_length and the label mask",
			d.path, ErrNoLabels, stats.Rows, stats.Truncated, opts.MaxLength)
	}
	return kept, stats, nil
}

// check tells whether the functions that d's rows need are there.
func (e Encoders) check(d *Dataset) error {
	if d.kind == KindMessages && e.Chat == nil {
		return fmt.Errorf("data: tokenise %s: rows have messages, but there is no chat template", d.path)
	}
	if d.kind == KindText && e.Text == nil {
		return fmt.Errorf("data: tokenise %s: rows have text, but there is no text encoder", d.path)
	}
	return nil
}

func (e Encoders) encode(row Row, opts TokeniseOptions) (Example, error) {
	switch row.Kind {
	case KindTokens:
		return Example{IDs: row.IDs, Labels: row.Labels}, nil
	case KindMessages:
		ids, on, err := e.Chat(row.Messages, row.Tools)
		if err != nil {
			return Example{}, err
		}
		if len(on) != len(ids) {
			return Example{}, fmt.Errorf("the chat encoder gave %d ids and %d labels", len(ids), len(on))
		}
		return masked(ids, func(i int) bool { return on[i] }), nil
	case KindText:
		ids, err := e.Text(row.Text)
		if err != nil {
			return Example{}, err
		}
		return masked(opts.end(ids), func(int) bool { return true }), nil
	case KindCompletion:
		prompt, ids, err := e.completion(row, opts)
		if err != nil {
			return Example{}, err
		}
		from := 0
		if !opts.PromptLoss {
			from = commonPrefix(prompt, ids)
		}
		return masked(ids, func(i int) bool { return i >= from }), nil
	}
	return Example{}, fmt.Errorf("unknown kind of row %d", row.Kind)
}

// completion encodes the prompt alone, and prompt and completion together. A token that straddles the border belongs to
// the completion: the two encodings part before it.
func (e Encoders) completion(row Row, opts TokeniseOptions) (prompt, all []int32, err error) {
	if row.PromptMessages > 0 {
		if e.Chat == nil || e.ChatPrompt == nil {
			return nil, nil, errors.New("the prompt is a list of messages, but there is no chat template")
		}
		if prompt, err = e.ChatPrompt(row.Messages[:row.PromptMessages], row.Tools); err != nil {
			return nil, nil, err
		}
		all, _, err = e.Chat(row.Messages, row.Tools)
		return prompt, all, err
	}
	if e.Text == nil {
		return nil, nil, errors.New("prompt and completion are texts, but there is no text encoder")
	}
	if prompt, err = e.Text(row.Prompt); err != nil {
		return nil, nil, err
	}
	if all, err = e.Text(row.Prompt + row.Completion); err != nil {
		return nil, nil, err
	}
	return prompt, opts.end(all), nil
}

// end appends the end-of-sequence token where it is missing.
func (o TokeniseOptions) end(ids []int32) []int32 {
	if len(o.EOS) == 0 || len(ids) > 0 && slices.Contains(o.EOS, ids[len(ids)-1]) {
		return ids
	}
	return append(slices.Clip(ids), o.EOS[0])
}

// masked makes an example with labels where on is true.
func masked(ids []int32, on func(i int) bool) Example {
	labels := make([]int32, len(ids))
	for i, id := range ids {
		labels[i] = IgnoreIndex
		if on(i) {
			labels[i] = id
		}
	}
	return Example{IDs: ids, Labels: labels}
}

func commonPrefix(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// lossTokens counts the positions that count in the loss of an unpacked example.
func (ex Example) lossTokens() int {
	n := 0
	for i, label := range ex.Labels {
		if i > 0 && label != IgnoreIndex {
			n++
		}
	}
	return n
}
