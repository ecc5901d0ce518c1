package vision_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"image/color"
	"image/jpeg"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/wangkuiyi/gotorch/vision"
)

func TestSynthesizer(t *testing.T) {
	var file bytes.Buffer
	s := vision.NewSynthesizer(&file)
	require.NoError(t, s.AddImage("red/0.jpeg", 6, 4, color.RGBA{R: 255, A: 255}))
	s.Close()

	z, err := gzip.NewReader(&file)
	require.NoError(t, err)
	r := tar.NewReader(z)
	h, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "red/0.jpeg", h.Name)
	m, err := jpeg.Decode(r)
	require.NoError(t, err)
	require.Equal(t, 6, m.Bounds().Dx())
	red, green, _, _ := m.At(3, 2).RGBA()
	require.Greater(t, red>>8, uint32(250))
	require.Less(t, green>>8, uint32(5))
	_, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
}
