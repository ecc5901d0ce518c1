package pickle

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func golden(name string) string { return filepath.Join("..", "..", "testdata", "torch", name) }

func open(t *testing.T, name string) *File {
	t.Helper()
	f, err := Open(golden(name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func TestTensorsGolden(t *testing.T) {
	f := open(t, "tensors.pt")
	require.Equal(t, []string{"float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
		"float8_e4m3fn", "float8_e5m2", "uint16", "scalar", "empty", "transposed", "part", "tied", "expanded", "parameter"}, f.Names())
	for name, want := range map[string]struct {
		dtype string
		bytes []byte
	}{
		"int64":         {"I64", []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
		"int32":         {"I32", []byte{1, 0, 0, 0, 2, 0, 0, 0}},
		"int16":         {"I16", []byte{1, 0, 2, 0}},
		"uint16":        {"U16", []byte{1, 0, 2, 0}},
		"int8":          {"I8", []byte{1, 2}},
		"uint8":         {"U8", []byte{1, 2}},
		"bool":          {"BOOL", []byte{0, 1}},
		"float16":       {"F16", []byte{0, 0x3c, 0, 0x40}},
		"bfloat16":      {"BF16", []byte{0x80, 0x3f, 0, 0x40}},
		"float8_e4m3fn": {"F8_E4M3", []byte{0x38, 0x40}},
		"float8_e5m2":   {"F8_E5M2", []byte{0x3c, 0x40}},
		"float64":       {"F64", []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0x40}},
		"complex64":     {"C64", []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0}},
	} {
		v, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want.dtype, v.DType, name)
		require.Equal(t, []int64{2, 3}, v.Shape, name)
		b, err := v.Bytes()
		require.NoError(t, err)
		require.Len(t, b, 3*len(want.bytes), name)
		require.Equal(t, want.bytes, b[:len(want.bytes)], name)
	}
	for name, want := range map[string]struct {
		shape  []int64
		values []float32
		row1   []float32
	}{
		"float32":    {[]int64{2, 3}, []float32{1, 2, 3, 4, 5, 6}, []float32{4, 5, 6}},
		"parameter":  {[]int64{2, 2}, []float32{1, 2, 3, 4}, []float32{3, 4}},
		"tied":       {[]int64{3, 4}, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, []float32{5, 6, 7, 8}},
		"transposed": {[]int64{4, 3}, []float32{1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12}, []float32{2, 6, 10}},
		"part":       {[]int64{2, 2}, []float32{6, 7, 10, 11}, []float32{10, 11}},
		"expanded":   {[]int64{2, 3}, []float32{1, 1, 1, 2, 2, 2}, []float32{2, 2, 2}},
		"scalar":     {[]int64{}, []float32{2.5}, nil},
		"empty":      {[]int64{0, 3}, []float32{}, nil},
	} {
		v, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want.shape, v.Shape, name)
		b, err := v.Bytes()
		require.NoError(t, err)
		require.Equal(t, want.values, float32s(b), name)
		require.Equal(t, int64(len(want.values)), v.NumElements())
		if want.row1 != nil {
			b, err = v.Rows(1, 2)
			require.NoError(t, err)
			require.Equal(t, want.row1, float32s(b), name)
			require.NoError(t, v.Release(0, 2))
		}
		_, err = v.Rows(0, v.rowCount()+1)
		require.ErrorContains(t, err, "out of range")
	}
	_, err := f.Tensor("absent")
	require.ErrorContains(t, err, `holds no tensor "absent"`)
	require.False(t, f.Has("absent"))
}

func TestCheckpointGolden(t *testing.T) {
	f := open(t, "checkpoint.pt")
	require.Equal(t, []string{"model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias", "model.1.running_mean",
		"model.1.running_var", "model.1.num_batches_tracked"}, f.Names())
	root := f.Root().(*Dict)
	get := func(key string) any {
		v, ok := root.Get(key)
		require.True(t, ok, key)
		return v
	}
	require.Equal(t, int64(3), get("epoch"))
	require.Equal(t, 0.5, get("lr"))
	require.Equal(t, "run", get("name"))
	require.Equal(t, new(big.Int).Lsh(big.NewInt(1), 70), get("big"))
	require.Equal(t, &List{[]any{int64(1), &Tuple{[]any{int64(2), nil, true}}}}, get("args"))
	_, ok := root.Get("absent")
	require.False(t, ok)

	single := open(t, "single.pt")
	require.Equal(t, []string{""}, single.Names())
	require.Equal(t, golden("single.pt"), single.Path())
}

func TestRefusals(t *testing.T) {
	_, err := Open(golden("legacy.pt"))
	require.ErrorIs(t, err, ErrLegacy)
	_, err = Open(golden("module.pt"))
	require.ErrorContains(t, err, `the pickle names "torch.nn.modules.container.Sequential", which is not allowed`)
	require.ErrorContains(t, err, "data.pkl: offset 2:")
	_, err = Open(golden("nn.json"))
	require.ErrorContains(t, err, "no zip archive")
	_, err = Open(golden("absent.pt"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Parse("tar", append(make([]byte, 257), "ustar\x0000"...))
	require.ErrorIs(t, err, ErrLegacy)
}

type entry struct{ name, text string }

func archiveOf(t testing.TB, method uint16, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		f, err := w.CreateHeader(&zip.FileHeader{Name: e.name, Method: method})
		require.NoError(t, err)
		_, err = io.WriteString(f, e.text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

const (
	id      = "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
	rebuild = "ctorch._utils\n_rebuild_tensor_v2\n"
)

func TestMalformed(t *testing.T) {
	storage := entry{"a/data/0", "0123456789abcdef"}
	for says, pickle := range map[string]string{
		`"os.system"`:                       "\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
		`"builtins.eval"`:                   "\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
		"opcode 'i' (0x69) is not one":      "\x80\x02ios\nsystem\n.",
		"opcode 'o'":                        "(o.",
		"opcode '\\u0082'":                  "\x82\x01.",
		"pickle protocol 9":                 "\x80\x09N.",
		"0 values, not one":                 ".",
		"2 values, not one":                 "NN.",
		"cut off":                           "X\xff\x00\x00\x00abc.",
		"-1 bytes wanted":                   "X\xff\xff\xff\xffabc.",
		"no mark":                           "t.",
		"1 bytes wanted, 0 left":            "N",
		"memo entry 7":                      "h\x07.",
		"the stack is empty":                "q\x00.",
		"has no end":                        "cos",
		"filled like a dict":                "](NNu.",
		"filled like a list":                "}Na.",
		"None cannot be filled":             "N(e.",
		"a dict with 1 keys":                "}(Nu.",
		"None is called with a tuple":       "N)R.",
		"cannot be called":                  "ctorch\nFloatStorage\n)R.",
		"attributes for None":               "NNb.",
		"no storage: None":                  "NQ.",
		"storage of unexpected form":        "(X\x07\x00\x00\x00storageNNNNtQ.",
		"a mark where":                      "(NR.",
		"list of pairs":                     "ccollections\nOrderedDict\n]Na\x85R.",
		"got 0 arguments":                   rebuild + ")R.",
		"arguments of unexpected types":     rebuild + "(NNNNNNtR.",
		"does not fit storage 0":            rebuild + "(" + id + "K\x00K\x05\x85K\x01\x85\x89NtR.",
		"offset 4 does not fit":             rebuild + "(" + id + "K\x04K\x01\x85K\x01\x85\x89NtR.",
		"strides [-1]":                      rebuild + "(" + id + "K\x03K\x04\x85J\xff\xff\xff\xff\x85\x89NtR.",
		"negative dimension":                rebuild + "(" + id + "K\x00J\xff\xff\xff\xff\x85K\x01\x85\x89NtR.",
		"repeats the 4 elements":            rebuild + "(" + id + "K\x00J\x00\x00\x00\x20\x85K\x00\x85\x89NtR.",
		"overflows":                         rebuild + "(" + id + "K\x00(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft(K\x00K\x00K\x00t\x89NtR.",
		`two tensors are called "a.b"`:      "}(X\x03\x00\x00\x00a.b" + rebuild + "(" + id + "K\x00))\x89NtRq\x00X\x01\x00\x00\x00a}X\x01\x00\x00\x00bh\x00su.",
		"contains itself":                   "]q\x00h\x00a.",
		"storage 0 has 16 bytes, its 5":     "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000NK\x05tQ.",
		"the archive has no data/9":         "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x009NK\x05tQ.",
		"the name of a global is None and ": "NN\x93.",
	} {
		_, err := Parse("f", archiveOf(t, zip.Store, entry{"a/data.pkl", pickle}, storage))
		require.ErrorContains(t, err, says)
	}
	for says, entries := range map[string][]entry{
		"has no data.pkl":       {storage},
		"not in its one folder": {{"a/data.pkl", "N."}, {"b/x", ""}},
		`"a/data.pkl" twice`:    {{"a/data.pkl", "N."}, {"a/data.pkl", "N."}},
		"TorchScript":           {{"a/data.pkl", "N."}, {"a/constants.pkl", "N."}},
		`byte order is "big"`:   {{"a/data.pkl", "N."}, {"a/byteorder", "big"}},
	} {
		_, err := Parse("f", archiveOf(t, zip.Store, entries...))
		require.ErrorContains(t, err, says)
	}
	_, err := Parse("f", archiveOf(t, zip.Deflate, entry{"a/data.pkl", "N."}))
	require.ErrorContains(t, err, "is compressed")
	f, err := Parse("f", archiveOf(t, zip.Store, entry{"a/data.pkl", "N."}))
	require.NoError(t, err)
	require.Empty(t, f.Names())
}

// A list that holds one list twice, sixty levels deep, has 2^60 leaves.
func TestBombIsRefused(t *testing.T) {
	p := "]q\x00"
	for range 60 {
		p += "](h\x00h\x00eq\x00"
	}
	_, err := Parse("f", archiveOf(t, zip.Store, entry{"a/data.pkl", p + "\x85."}))
	require.Error(t, err)
}

func TestTruncatedFilesAreErrors(t *testing.T) {
	data, err := os.ReadFile(golden("tensors.pt"))
	require.NoError(t, err)
	for n := 0; n < len(data); n += 37 {
		_, err := Parse("f", data[:n])
		require.Error(t, err)
	}
}

// Whatever a file holds, reading it ends, with tensors inside the file or with an error.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"tensors.pt", "checkpoint.pt", "single.pt", "module.pt", "legacy.pt"} {
		data, err := os.ReadFile(golden(name))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add(archiveOf(f, zip.Store, entry{"m/data/0", "0123456789abcdef"}, entry{"m/data.pkl", scriptModule}, entry{"m/constants.pkl", ""}))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func(string, []byte) (*File, error){Parse, ParseModule} {
			if file, err := parse("f", data); err == nil {
				readAll(t, file)
			}
		}
	})
}

// The same for the pickle inside.
func FuzzMachine(f *testing.F) {
	for _, name := range []string{"tensors.pt", "checkpoint.pt", "single.pt", "module.pt"} {
		data, err := os.ReadFile(golden(name))
		require.NoError(f, err)
		a, err := openArchive(data)
		require.NoError(f, err)
		program, err := a.bytes("data.pkl")
		require.NoError(f, err)
		f.Add(program)
	}
	f.Add([]byte(rebuild + "(" + id + "K\x00K\x04\x85K\x01\x85\x89NtR."))
	f.Fuzz(func(t *testing.T, program []byte) {
		file, err := Parse("f", archiveOf(t, zip.Store, entry{"a/data.pkl", string(program)}, entry{"a/data/0", "0123456789abcdef"}))
		if err == nil {
			readAll(t, file)
		}
	})
}

func readAll(t *testing.T, f *File) {
	for _, v := range f.All() {
		if v.NumElements() > 1<<16 {
			continue
		}
		b, err := v.Bytes()
		require.NoError(t, err)
		require.EqualValues(t, v.NumElements()*v.width, len(b))
	}
}

const scriptModule = "\x80\x02c__torch__\nModule\nq\x00)\x81}(X\x01\x00\x00\x000q\x01" + rebuild + "(" + id +
	"K\x00(K\x02K\x02t(K\x02K\x01t\x88ccollections\nOrderedDict\n)RtRub."

func TestParseModule(t *testing.T) {
	archive := func(program string) []byte {
		return archiveOf(t, zip.Store, entry{"m/data/0", "0123456789abcdef"}, entry{"m/data.pkl", program}, entry{"m/constants.pkl", "\x80\x02)."})
	}
	_, err := Parse("m.pt", archive(scriptModule))
	require.ErrorContains(t, err, "TorchScript program")

	f, err := ParseModule("m.pt", archive(scriptModule))
	require.NoError(t, err)
	require.Equal(t, []string{"0"}, f.Names())
	v, err := f.Tensor("0")
	require.NoError(t, err)
	require.True(t, v.RequiresGrad)
	b, err := v.Bytes()
	require.NoError(t, err)
	require.Equal(t, "0123456789abcdef", string(b))

	_, err = ParseModule("m.pt", archive("\x80\x02c__torch__\nModule\n)\x81]b."))
	require.ErrorContains(t, err, "the attributes of an object are a list")
	_, err = ParseModule("m.pt", archive("\x80\x02c__torch__\nModule\nK\x01\x85\x81."))
	require.ErrorContains(t, err, "cannot be called")
	_, err = ParseModule("m.pt", archive("\x80\x02cos\nsystem\n)\x81."))
	require.ErrorContains(t, err, `the pickle names "os.system", which is not allowed`)
	_, err = Parse("m.pt", archiveOf(t, zip.Store, entry{"m/data/0", "0123456789abcdef"}, entry{"m/data.pkl", scriptModule}))
	require.ErrorContains(t, err, `the pickle names "__torch__.Module", which is not allowed`)
}

func TestRequiresGradGolden(t *testing.T) {
	f := open(t, "tensors.pt")
	for name, want := range map[string]bool{"float32": false, "parameter": true} {
		v, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want, v.RequiresGrad, name)
	}
}
