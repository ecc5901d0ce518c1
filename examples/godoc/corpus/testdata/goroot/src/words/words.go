// Package words is a toy. It has two sentences.
//
// # Heading
//
// Text below a heading is not taken.
package words

import "errors"

// Limit is the most words
// of a list.
const Limit int = 8

const (
	// Red is a colour.
	Red   = iota
	Green // no comment above
)

// ErrEmpty is returned for an empty list.
var ErrEmpty = errors.New("empty")

// Cut slices s around the first sep.
// It returns what is before and after.
//
// If sep is not there, found is false.
//
// For example:
//
//	Cut("a-b", "-")
func Cut(s, sep string) (before, after string, found bool) { return s, "", false }

// Old does nothing.
//
// Deprecated: use Cut.
func Old() {}

func Bare() {}

// hidden is not exported.
func hidden() {}

// A List is a stack of values of type T, see [Cut]. Its zero value is empty. The following methods exist:
//
//   - Push
type List[T any] struct {
	items []T
}

// NewList returns an empty list.
func NewList[T any](
	items ...T,
) *List[T] {
	return &List[T]{items}
}

// Push adds x.
func (l *List[T]) Push(x T) { l.items = append(l.items, x) }

// Reader reads words.
type Reader interface {
	Read() string
}

// Number is a whole number.
type Number int

// Next returns n + 1.
func (n Number) Next() Number { return n + 1 }
