package pickle

import (
	"archive/zip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/big"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/safetensors"
)

// call is a global applied to arguments; Encode writes it for *Object with arguments.
type call struct {
	f    Global
	args []any
}

// persistent is a persistent id: what stands for a storage.
type persistent struct{ id any }

// Encode writes a value as a pickle of protocol 2: nil, bool, int, int64, *big.Int, float64, string, []any (a list),
// *List, *Tuple, *Dict, Global and *Object. An object with a State is made without arguments and then given the state; one
// without is its class called with Args.
func Encode(v any) ([]byte, error) {
	e := encoder{memo: map[string]uint32{}, out: []byte{opProto, 2}}
	if err := e.value(v); err != nil {
		return nil, fmt.Errorf("pickle: encode: %w", err)
	}
	return append(e.out, opStop), nil
}

type encoder struct {
	out  []byte
	memo map[string]uint32 // of globals and strings, which repeat
}

func (e *encoder) op(op byte, operand ...byte) { e.out = append(append(e.out, op), operand...) }

func (e *encoder) value(v any) error {
	switch v := v.(type) {
	case nil:
		e.op(opNone)
	case bool:
		if v {
			e.op(opTrue)
		} else {
			e.op(opFalse)
		}
	case int:
		e.int(int64(v))
	case int64:
		e.int(v)
	case *big.Int:
		return e.big(v)
	case float64:
		e.out = binary.BigEndian.AppendUint64(append(e.out, opFloat64), math.Float64bits(v))
	case string:
		e.string(v)
	case Global:
		return e.global(v)
	case *Tuple:
		return e.tuple(v.Items)
	case []any:
		return e.list(v)
	case *List:
		return e.list(v.Items)
	case *Dict:
		return e.dict(v)
	case *Object:
		return e.object(v)
	case call:
		if err := e.global(v.f); err != nil {
			return err
		}
		if err := e.tuple(v.args); err != nil {
			return err
		}
		e.op(opReduce)
	case persistent:
		if err := e.value(v.id); err != nil {
			return err
		}
		e.op(opPersID)
	default:
		return fmt.Errorf("a value of type %T", v)
	}
	return nil
}

func (e *encoder) int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		e.op(opUint8, byte(n))
	case n >= 0 && n < 1<<16:
		e.op(opUint16, byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		e.out = binary.LittleEndian.AppendUint32(append(e.out, opInt32), uint32(int32(n)))
	default:
		e.out = binary.LittleEndian.AppendUint64(append(e.out, opLong1, 8), uint64(n))
	}
}

func (e *encoder) big(n *big.Int) error {
	if !n.IsInt64() {
		return fmt.Errorf("the integer %v has more than 64 bits", n)
	}
	e.int(n.Int64())
	return nil
}

// recall writes a reference to what was memoised under key, if there is any.
func (e *encoder) recall(key string) bool {
	n, ok := e.memo[key]
	if ok {
		e.out = binary.LittleEndian.AppendUint32(append(e.out, opLongGet), n)
	}
	return ok
}

func (e *encoder) memoise(key string) {
	n := uint32(len(e.memo))
	e.memo[key] = n
	e.out = binary.LittleEndian.AppendUint32(append(e.out, opLongPut), n)
}

func (e *encoder) string(s string) {
	if e.recall("s" + s) {
		return
	}
	e.out = binary.LittleEndian.AppendUint32(append(e.out, opUnicode), uint32(len(s)))
	e.out = append(e.out, s...)
	e.memoise("s" + s)
}

func (e *encoder) global(g Global) error {
	dot := strings.LastIndexByte(string(g), '.')
	if dot < 0 || strings.ContainsAny(string(g), "\n") {
		return fmt.Errorf("the global %q has no module", string(g))
	}
	if !e.recall("g" + string(g)) {
		e.out = append(e.out, opGlobal)
		e.out = append(e.out, string(g)[:dot]+"\n"+string(g)[dot+1:]+"\n"...)
		e.memoise("g" + string(g))
	}
	return nil
}

func (e *encoder) each(items []any) error {
	for _, item := range items {
		if err := e.value(item); err != nil {
			return err
		}
	}
	return nil
}

func (e *encoder) tuple(items []any) error {
	if len(items) == 0 {
		e.op(opEmptyTuple)
		return nil
	}
	e.op(opMark)
	err := e.each(items)
	e.op(opTuple)
	return err
}

func (e *encoder) list(items []any) error {
	e.op(opEmptyList)
	e.op(opMark)
	err := e.each(items)
	e.op(opAppends)
	return err
}

func (e *encoder) dict(d *Dict) error {
	e.op(opEmptyDict)
	e.op(opMark)
	for _, item := range d.Items {
		if err := e.each([]any{item.Key, item.Value}); err != nil {
			return err
		}
	}
	e.op(opSetItems)
	return nil
}

func (e *encoder) object(o *Object) error {
	if o.State == nil {
		return e.value(call{o.Class, o.Args})
	}
	if err := e.global(o.Class); err != nil {
		return err
	}
	if err := e.tuple(o.Args); err != nil {
		return err
	}
	e.op(opNewObj)
	if err := e.value(o.State); err != nil {
		return err
	}
	e.op(opBuild)
	return nil
}

// alignment of a storage in an archive, as torch.save has it.
const alignment = 64

// WriteValue writes a plain value, as Encode takes it, as torch.save does.
func WriteValue(w io.Writer, v any) error {
	program, err := Encode(v)
	if err != nil {
		return err
	}
	return writeArchive(w, program, nil)
}

// WriteTensor writes one contiguous tensor as torch.save does. dtype is safetensors' name; data are its elements,
// little-endian and row-major.
func WriteTensor(w io.Writer, dtype string, shape []int64, data []byte) error {
	size, err := safetensors.ByteSize(dtype, shape)
	if err != nil {
		return fmt.Errorf("pickle: %w", err)
	}
	if size != int64(len(data)) {
		return fmt.Errorf("pickle: %s%v takes %d bytes, got %d", dtype, shape, size, len(data))
	}
	torchType, ok := TorchDType(dtype)
	if !ok {
		return fmt.Errorf("pickle: PyTorch's files have no dtype for %s", dtype)
	}
	kind, numel := storageOf(dtype), int64(len(data))
	if kind != untypedStorage {
		numel /= int64(safetensors.BitsPerElement(dtype) / 8)
	}
	dims, strides := make([]any, len(shape)), make([]any, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		dims[i], strides[i] = shape[i], step
		step *= max(1, shape[i])
	}
	args := []any{persistent{&Tuple{[]any{"storage", kind, "0", "cpu", numel}}}, 0, &Tuple{dims}, &Tuple{strides}, false, call{orderedDict, nil}}
	rebuild := rebuildTensor
	if kind == untypedStorage {
		rebuild, args = rebuildTensor3, append(args, torchType)
	}
	program, err := Encode(call{rebuild, args})
	if err != nil {
		return err
	}
	return writeArchive(w, program, data)
}

// writeArchive writes the zip file; storage nil: none.
func writeArchive(w io.Writer, program, storage []byte) error {
	out := &counter{w: w}
	z := zip.NewWriter(out)
	entries := []struct {
		name string
		data []byte
	}{{"data.pkl", program}, {"byteorder", []byte("little")}, {"data/0", storage}, {"version", []byte("3\n")}}
	for _, e := range entries {
		if e.name == "data/0" && storage == nil {
			continue
		}
		if err := z.Flush(); err != nil {
			return fmt.Errorf("pickle: %w", err)
		}
		h := zip.FileHeader{Name: "archive/" + e.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(e.data),
			CompressedSize64: uint64(len(e.data)), UncompressedSize64: uint64(len(e.data))}
		if e.name == "data/0" {
			// An extra field of nothing but padding moves the data to the next multiple.
			const header, field = 30, 4
			start := out.n + header + int64(len(h.Name)) + field
			pad := (alignment - start%alignment) % alignment
			h.Extra = append([]byte{'F', 'B', byte(pad), 0}, make([]byte, pad)...)
		}
		part, err := z.CreateRaw(&h)
		if err == nil {
			_, err = part.Write(e.data)
		}
		if err != nil {
			return fmt.Errorf("pickle: %w", err)
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("pickle: %w", err)
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
