// Package vision makes archives of images for tests of image loaders.
package vision

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"io"
)

// SynthesizeImage makes an image of one colour.
func SynthesizeImage(w, h int, c color.Color) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.Draw(m, m.Bounds(), image.NewUniform(c), image.Point{}, draw.Src)
	return m
}

// Synthesizer writes images into a compressed tar archive.
type Synthesizer struct {
	*tar.Writer
	compressor *gzip.Writer
}

// NewSynthesizer makes a Synthesizer that writes to output; Close ends the archive.
func NewSynthesizer(output io.Writer) *Synthesizer {
	c := gzip.NewWriter(output)
	return &Synthesizer{Writer: tar.NewWriter(c), compressor: c}
}

// AddImage adds a JPEG file with an image of one colour.
func (s *Synthesizer) AddImage(fn string, w, h int, c color.Color) error {
	var data bytes.Buffer
	if err := jpeg.Encode(&data, SynthesizeImage(w, h, c), nil); err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: fn, Mode: 0o600, Size: int64(data.Len())}
	if err := s.WriteHeader(header); err != nil {
		return err
	}
	_, err := s.Write(data.Bytes())
	return err
}

// Close ends the archive. It does not close the output. Errors of the output show in AddImage, or in reading the archive.
func (s *Synthesizer) Close() {
	s.Writer.Close()
	s.compressor.Close()
}
