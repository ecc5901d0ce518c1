package gotorch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"

	"github.com/gofsdp/gofsdp/modelio/pickle"
	"github.com/gofsdp/gofsdp/torch"
)

// Note [Encoding]
// GobEncode and Save write a zip archive of a pickled tensor: byte for byte what torch::pickle_save of libtorch 1.6 wrote
// for the original, so that files go both ways, and what torch.load of Python reads. Its entries are data/0 (the elements),
// data.pkl and version. Every entry starts at a multiple of 64, by means of an extra field "FB" full of Z; its
// checksum and sizes follow its data; times are 0; the directory ends in the zip64 form. Only the elements of a view are
// written, not all of the memory that it looks at.

// Save writes a to a file, which Load and Python's torch.load read. A tensor on a GPU is saved as one on the CPU. It panics
// if the file cannot be written.
func (a Tensor) Save(path string) {
	data, err := a.GobEncode()
	if err == nil {
		err = os.WriteFile(path, data, 0o666)
	}
	throw("save", path, err)
}

// Load reads a tensor from a file of Save, of the original's Save, or of Python's torch.save. It panics if it cannot.
func Load(path string) Tensor {
	data, err := os.ReadFile(path)
	throw("load", path, err)
	t, err := decode(path, data)
	throw("load", path, err)
	return t
}

func throw(op, path string, err error) {
	if err != nil {
		torch.Throw(fmt.Errorf("gotorch: %s %s: %w", op, path, err))
	}
}

// GobEncode encodes a, as one on the CPU. It makes values that hold tensors fit for package gob.
func (a Tensor) GobEncode() ([]byte, error) {
	if !a.defined() {
		return nil, fmt.Errorf("gotorch: encode: the Tensor is empty")
	}
	var data []byte
	err := torch.Try(func() {
		t := a.Torch()
		storage := storageNames[t.DType()]
		if storage == "" {
			fail("encode", "tensors of type %v cannot be encoded", t.DType())
		}
		elements := t.Bytes()
		if len(elements) > math.MaxUint32/2 {
			fail("encode", "the tensor has %d bytes, at most 2 GiB can be encoded: write a safetensors file", len(elements))
		}
		program := pickled(storage, t.Shape(), t.RequiresGrad())
		data = archive([]entry{{"data/0", elements}, {"data.pkl", program}, {"version", []byte("3\n")}})
	})
	return data, err
}

// GobDecode makes a the tensor that GobEncode encoded, here or in the original.
func (a *Tensor) GobDecode(buf []byte) error {
	t, err := decode("gob", buf)
	if err != nil {
		return fmt.Errorf("gotorch: decode: %w", err)
	}
	*a = t
	return nil
}

func decode(name string, data []byte) (Tensor, error) {
	f, err := pickle.ParseModule(name, data)
	if err != nil {
		return Tensor{}, err
	}
	root := f.Root()
	if d, ok := root.(*pickle.Dict); ok { // torch::save of C++ makes the tensor an attribute of a module
		root, _ = d.Get("0")
	}
	saved, ok := root.(*pickle.Tensor)
	if !ok {
		return Tensor{}, fmt.Errorf("%s holds something other than one tensor", name)
	}
	dtype, err := torch.ParseDType(saved.DType)
	if err != nil {
		return Tensor{}, err
	}
	elements, err := saved.Bytes()
	if err != nil {
		return Tensor{}, err
	}
	var t *torch.Tensor
	err = torch.Try(func() {
		t = torch.FromBytes(dtype, elements, saved.Shape...)
		if saved.RequiresGrad {
			t.SetRequiresGrad(true)
		}
	})
	return Wrap(t), err
}

var storageNames = map[torch.DType]string{
	torch.Uint8: "Byte", torch.Int8: "Char", torch.Int16: "Short", torch.Int32: "Int", torch.Int64: "Long",
	torch.Float16: "Half", torch.Float32: "Float", torch.Float64: "Double", torch.Complex64: "ComplexFloat",
	torch.Bool: "Bool", torch.BFloat16: "BFloat16",
}

// pickled is the program that makes the tensor from the storage data/0.
func pickled(storage string, shape []int64, requiresGrad bool) []byte {
	numel := int64(1)
	strides := make([]int64, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = numel
		numel *= max(shape[i], 1)
	}
	for _, d := range shape {
		if d == 0 {
			numel = 0
		}
	}
	var p pickler
	p.WriteString("\x80\x02") // protocol 2
	p.global("torch._utils", "_rebuild_tensor_v2")
	p.WriteString("((")
	p.text("storage")
	p.global("torch", storage+"Storage")
	p.text("0")
	p.text("cpu")
	p.integer(numel)
	p.WriteByte('t')
	p.WriteByte('Q') // the tuple is a persistent id
	p.memoize()
	p.integer(0) // offset
	p.integers(shape)
	p.integers(strides)
	if requiresGrad {
		p.WriteByte(0x88)
	} else {
		p.WriteByte(0x89)
	}
	p.global("collections", "OrderedDict")
	p.WriteString(")RtR")
	p.memoize()
	p.WriteByte('.')
	return p.Bytes()
}

// pickler writes the opcodes that C++'s Pickler writes.
type pickler struct {
	bytes.Buffer
	memo byte
}

func (p *pickler) memoize() {
	p.WriteByte('q')
	p.WriteByte(p.memo)
	p.memo++
}

func (p *pickler) global(module, name string) {
	p.WriteString("c" + module + "\n" + name + "\n")
	p.memoize()
}

func (p *pickler) text(s string) {
	p.WriteByte('X')
	p.little(uint32(len(s)))
	p.WriteString(s)
	p.memoize()
}

func (p *pickler) integers(list []int64) {
	if len(list) == 0 {
		p.WriteByte(')')
		return
	}
	p.WriteByte('(')
	for _, n := range list {
		p.integer(n)
	}
	p.WriteByte('t')
}

// integer writes a number that is not negative.
func (p *pickler) integer(n int64) {
	switch {
	case n <= math.MaxUint8:
		p.WriteByte('K')
		p.WriteByte(byte(n))
	case n <= math.MaxUint16:
		p.WriteByte('M')
		p.little(uint16(n))
	case n <= math.MaxInt32:
		p.WriteByte('J')
		p.little(int32(n))
	default:
		p.WriteString("\x8a\x08")
		p.little(n)
	}
}

func (p *pickler) little(v any) {
	b, _ := binary.Append(nil, binary.LittleEndian, v) // fails only for types of no fixed size
	p.Write(b)
}

type entry struct {
	name string
	data []byte
}

// archive writes a zip archive as PyTorchStreamWriter does, below 4 GiB.
func archive(entries []entry) []byte {
	var file, directory []byte
	le := binary.LittleEndian
	const flags = 0x0808 // names in UTF-8, sizes after the data
	for _, e := range entries {
		name, sum, size := "archive/"+e.name, crc32.ChecksumIEEE(e.data), uint32(len(e.data))
		at := uint32(len(file))
		padding := (64 - (len(file)+30+len(name)+4)%64) % 64

		file = append(file, "PK\x03\x04\x00\x00"...)
		file = le.AppendUint16(file, flags)
		file = append(file, make([]byte, 18)...) // stored; no time, checksum and sizes
		file = le.AppendUint16(file, uint16(len(name)))
		file = le.AppendUint16(file, uint16(padding+4))
		file = append(file, name+"FB"...)
		file = le.AppendUint16(file, uint16(padding))
		file = append(file, bytes.Repeat([]byte("Z"), padding)...)
		file = append(file, e.data...)
		file = append(file, "PK\x07\x08"...)
		file = le.AppendUint32(file, sum)
		file = le.AppendUint32(file, size)
		file = le.AppendUint32(file, size)

		directory = append(directory, "PK\x01\x02\x00\x00\x00\x00"...)
		directory = le.AppendUint16(directory, flags)
		directory = append(directory, make([]byte, 6)...) // stored; no time
		directory = le.AppendUint32(directory, sum)
		directory = le.AppendUint32(directory, size)
		directory = le.AppendUint32(directory, size)
		directory = le.AppendUint16(directory, uint16(len(name)))
		directory = append(directory, make([]byte, 12)...) // no extra field, comment, disk, attributes
		directory = le.AppendUint32(directory, at)
		directory = append(directory, name...)
	}
	return append(append(file, directory...), directoryEnd(len(entries), len(directory), len(file))...)
}

// directoryEnd is the end of an archive: its directory's place in the zip64 form, that form's own place, and the old form.
func directoryEnd(entries, size, at int) []byte {
	le := binary.LittleEndian
	b := []byte("PK\x06\x06")
	b = le.AppendUint64(b, 44) // bytes that follow
	b = append(b, 0x1e, 3, 0x2d, 0)
	b = append(b, make([]byte, 8)...) // disks
	for _, n := range []int{entries, entries, size, at} {
		b = le.AppendUint64(b, uint64(n))
	}
	b = append(b, "PK\x06\x07\x00\x00\x00\x00"...)
	b = le.AppendUint64(b, uint64(at+size))
	b = le.AppendUint32(b, 1) // disks
	b = append(b, "PK\x05\x06\x00\x00\x00\x00"...)
	b = le.AppendUint16(b, uint16(entries))
	b = le.AppendUint16(b, uint16(entries))
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, uint32(at))
	return le.AppendUint16(b, 0) // no comment
}
