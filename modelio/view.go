package modelio

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/modelio/internal/float"
	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// View is a stored tensor. Its bytes are read when they are asked for. Views may be used from several goroutines, and
// are valid until the Weights that they come from are closed.
type View struct {
	Name  string
	DType string  // safetensors' name: "F32", "BF16", "F16", "U8", ...; "F32" for every tensor of a GGUF file
	Shape []int64 // empty for a scalar

	src rowSource
}

// rowSource gives ranges of dim 0; a scalar counts as one row.
type rowSource interface {
	rows(lo, hi int64) ([]byte, error)
	float32s(dst []float32, lo, hi int64) error
	release(lo, hi int64) error
}

// NumElements gives the number of elements.
func (v View) NumElements() int64 {
	n := int64(1)
	for _, d := range v.Shape {
		n *= d
	}
	return n
}

// NumRows gives the size of dim 0, 1 for a scalar.
func (v View) NumRows() int64 {
	if len(v.Shape) == 0 {
		return 1
	}
	return v.Shape[0]
}

// RowLen gives the number of elements in a row along dim 0.
func (v View) RowLen() int64 {
	n := int64(1)
	for i := 1; i < len(v.Shape); i++ {
		n *= v.Shape[i]
	}
	return n
}

func (v View) checkRows(lo, hi int64) error {
	if lo < 0 || hi < lo || hi > v.NumRows() {
		return fmt.Errorf("modelio: tensor %q with shape %v: rows [%d:%d] are out of range", v.Name, v.Shape, lo, hi)
	}
	return nil
}

// Bytes gives all elements, little-endian and row-major.
func (v View) Bytes() ([]byte, error) { return v.Rows(0, v.NumRows()) }

// Rows gives the bytes of rows lo up to, not including, hi along dim 0. They are the mapped file's own (read-only)
// where the file holds them as they are, and fresh memory where they are dequantised.
func (v View) Rows(lo, hi int64) ([]byte, error) {
	if err := v.checkRows(lo, hi); err != nil {
		return nil, err
	}
	return v.src.rows(lo, hi)
}

// ReadFloat32 widens rows lo up to, not including, hi into dst, which must hold exactly their elements. The dtype must
// be F32, F16 or BF16.
func (v View) ReadFloat32(dst []float32, lo, hi int64) error {
	if err := v.checkRows(lo, hi); err != nil {
		return err
	}
	if want := (hi - lo) * v.RowLen(); int64(len(dst)) != want {
		return fmt.Errorf("modelio: tensor %q: rows [%d:%d] have %d elements, dst has %d", v.Name, lo, hi, want, len(dst))
	}
	return v.src.float32s(dst, lo, hi)
}

// Release hands the mapped pages of rows lo up to, not including, hi back to the system; they stay readable.
func (v View) Release(lo, hi int64) error {
	if err := v.checkRows(lo, hi); err != nil {
		return err
	}
	return v.src.release(lo, hi)
}

// mapped is a tensor of a safetensors file.
type mapped struct {
	file *safetensors.File
	v    safetensors.View
}

func (m mapped) rows(lo, hi int64) ([]byte, error) {
	if len(m.v.Shape) == 0 {
		return m.v.Data[:int64(len(m.v.Data))*(hi-lo)], nil
	}
	if m.v.Shape[0] > 0 && int64(len(m.v.Data))%m.v.Shape[0] != 0 {
		return nil, fmt.Errorf("modelio: tensor %q (%s%v): a row is not a whole number of bytes", m.v.Name, m.v.DType, m.v.Shape)
	}
	return m.v.Rows(lo, hi), nil
}

func (m mapped) float32s(dst []float32, lo, hi int64) error {
	src, err := m.rows(lo, hi)
	if err != nil {
		return err
	}
	return widen(dst, src, m.v.Name, m.v.DType)
}

// widen converts the elements of a tensor.
func widen(dst []float32, src []byte, name, dtype string) error {
	switch dtype {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "F16":
		for i := range dst {
			dst[i] = float.F16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = float.BF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		return fmt.Errorf("modelio: tensor %q has dtype %s, expected F32, F16 or BF16", name, dtype)
	}
	return nil
}

func (m mapped) release(lo, hi int64) error {
	part, err := m.rows(lo, hi)
	if err != nil {
		return err
	}
	v := m.v
	v.Data = part
	return m.file.Release(v)
}

// pickled is a tensor of a PyTorch file.
type pickled struct {
	name string
	t    *pickle.Tensor
}

func (p pickled) rows(lo, hi int64) ([]byte, error) { return p.t.Rows(lo, hi) }

func (p pickled) float32s(dst []float32, lo, hi int64) error {
	src, err := p.t.Rows(lo, hi)
	if err != nil {
		return err
	}
	return widen(dst, src, p.name, p.t.DType)
}

func (p pickled) release(lo, hi int64) error { return p.t.Release(lo, hi) }
