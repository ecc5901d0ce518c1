package gotorch_test

import (
	"bytes"
	"crypto/md5"
	"encoding/gob"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"

	gofsdp "github.com/gofsdp/gofsdp/torch"
)

// The bytes are those of torch::pickle_save of libtorch 1.6.
func TestEncodingGolden(t *testing.T) {
	data, err := torch.Eye(3, 3, false).GobEncode()
	require.NoError(t, err)
	require.Len(t, data, 747)
	sum := md5.Sum(data)
	require.Equal(t, "dd65752601bf4d4ca19ae903baf96799", hex.EncodeToString(sum[:]))
}

func TestGobKeepsTensors(t *testing.T) {
	ones := torch.Ones([]int64{300, 70000}, false)
	want := map[string]torch.Tensor{
		"parameter": torch.RandN([]int64{3, 2}, true),
		"scalar":    torch.RandN([]int64{}, false),
		"empty":     torch.Empty([]int64{0, 3}, false),
		"view":      torch.RandN([]int64{3, 2}, false).Transpose(0, 1),
		"wide":      ones.View(1, -1).Sum(map[string]interface{}{"dim": 0}).CastTo(torch.Bool),
		"bytes":     torch.NewTensor([]byte{1, 255}),
		"bfloat16":  torch.RandN([]int64{5}, false).CastTo(torch.BFloat16),
		"long":      torch.NewTensor([]int64{1 << 60}),
		"complex":   torch.RandN([]int64{2}, false).CastTo(torch.ComplexFloat),
	}
	var file bytes.Buffer
	require.NoError(t, gob.NewEncoder(&file).Encode(want))
	var got map[string]torch.Tensor
	require.NoError(t, gob.NewDecoder(&file).Decode(&got))
	require.Len(t, got, len(want))
	for name, a := range want {
		require.Equal(t, a.Dtype(), got[name].Dtype(), name)
		require.Equal(t, a.Shape(), got[name].Shape(), name)
		require.True(t, torch.Equal(a.Detach(), got[name].Detach()), name)
		require.Equal(t, name == "parameter", got[name].Torch().RequiresGrad(), name)
	}
}

func TestEncodingErrors(t *testing.T) {
	_, err := torch.Tensor{}.GobEncode()
	require.ErrorContains(t, err, "the Tensor is empty")
	_, err = torch.Ones([]int64{1}, false).CastTo(torch.ComplexDouble).GobEncode()
	require.ErrorContains(t, err, "type complex128 cannot be encoded")

	var a torch.Tensor
	require.ErrorContains(t, a.GobDecode([]byte("no archive")), "gotorch: decode: pickle: gob: this is no file of torch.save")
	data, err := torch.Ones([]int64{4}, false).GobEncode()
	require.NoError(t, err)
	for n := 0; n < len(data); n += 7 {
		require.Error(t, a.GobDecode(data[:n]), n)
	}
	require.Nil(t, a.T)
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.pt")
	a := torch.RandN([]int64{2, 3}, false)
	a.Save(path)
	require.True(t, torch.Equal(a, torch.Load(path)))

	err := gofsdp.Try(func() { a.Save(filepath.Join(path, "b.pt")) })
	require.ErrorContains(t, err, "gotorch: save "+path)
	err = gofsdp.Try(func() { torch.Load(path + "x") })
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	require.ErrorContains(t, gofsdp.Try(func() { torch.Load(path) }), "gotorch: load "+path)
}

// testdata/torch_save.pt is a 3 × 3 identity that C++'s torch::save wrote, the function behind the original's Save.
func TestLoadTorchSaveGolden(t *testing.T) {
	require.True(t, torch.Equal(torch.Eye(3, 3, false), torch.Load("testdata/torch_save.pt")))
}
