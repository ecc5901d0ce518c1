package setup

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// unpackAll unpacks the wheels side by side, which is how their libraries find each other, into a temporary
// folder that becomes home by a rename.
func (o *Options) unpackAll(ctx context.Context, wheels []wheel, files []string, cuda bool) error {
	home := o.home()
	parent := filepath.Dir(home)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(parent, ".unpack-*")
	if err != nil {
		return diskError(err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	for i, file := range files {
		label := fmt.Sprintf("unpacking %s %s", wheels[i].Name, wheels[i].Version)
		if err := unpack(ctx, file, temp, cuda, newProgress(o.Out, label)); err != nil {
			return diskError(fmt.Errorf("unpack %s: %w", filepath.Base(file), err))
		}
		if !o.KeepWheels {
			os.Remove(file)
		}
	}
	if _, err := inspectTorch(filepath.Join(temp, "torch")); err != nil {
		return fmt.Errorf("what was unpacked: %w", err)
	}
	if err := writeJSON(filepath.Join(temp, installedFile), installed{CUDA: cuda, Wheels: wheels}); err != nil {
		return diskError(err)
	}
	// A folder that is there lacks something (CUDA, or it was left by hand): it makes way.
	old := temp + "-old"
	if err := os.Rename(home, old); err == nil {
		defer os.RemoveAll(old)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(temp, home)
}

// unpack writes the wanted files of one wheel into dir.
func unpack(ctx context.Context, file, dir string, cuda bool, p *progress) error {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	var files []*zip.File
	var total uint64
	for _, f := range archive.File {
		if f.Mode().IsRegular() && wanted(f.Name, cuda) {
			if !filepath.IsLocal(f.Name) {
				return fmt.Errorf("entry %q points out of the archive", f.Name)
			}
			files = append(files, f)
			total += f.UncompressedSize64
		}
	}
	p.start(total)
	defer p.finish()
	for _, f := range files {
		if err := unpackFile(ctx, f, filepath.Join(dir, f.Name), p); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func unpackFile(ctx context.Context, f *zip.File, path string, p *progress) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	mode := os.FileMode(0o644)
	if f.Mode()&0o100 != 0 {
		mode = 0o755
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.MultiWriter(out, p), readerWithContext{ctx, in})
	return errors.Join(err, out.Close())
}
