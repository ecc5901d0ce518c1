package setup

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// webIndex is a package index that speaks the JSON form of the simple repository API, as pypi.org does.
type webIndex struct {
	base   string // such as https://pypi.org/simple
	client *http.Client
}

// defaultIndex is pypi.org's.
const defaultIndex = "https://pypi.org/simple"

// newWebIndex opens the index that pip is configured for.
func newWebIndex(ctx context.Context, pip []string) *webIndex {
	base := os.Getenv("PIP_INDEX_URL")
	if base == "" {
		args := append(pip[1:len(pip):len(pip)], "config", "get", "global.index-url")
		if out, err := exec.CommandContext(ctx, pip[0], args...).Output(); err == nil {
			base = strings.TrimSpace(string(out))
		}
	}
	if !strings.HasPrefix(base, "http") {
		base = defaultIndex
	}
	return &webIndex{base: strings.TrimRight(base, "/"), client: &http.Client{Timeout: time.Minute}}
}

func (w *webIndex) get(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := w.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("package index: %w: check the network and its proxy", err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusPartialContent {
		response.Body.Close()
		return response, fmt.Errorf("package index: %s: %s", address, response.Status)
	}
	return response, nil
}

func (w *webIndex) files(ctx context.Context, name string) ([]indexFile, error) {
	address := w.base + "/" + name + "/"
	response, err := w.get(ctx, address, http.Header{"Accept": {"application/vnd.pypi.simple.v1+json"}})
	if response != nil && response.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var page struct {
		Files []indexFile `json:"files"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 256<<20)).Decode(&page); err != nil {
		return nil, fmt.Errorf("package index: %s is no page of the simple API in JSON: %w", address, err)
	}
	from, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	for i := range page.Files {
		link, err := from.Parse(page.Files[i].URL)
		if err != nil {
			return nil, fmt.Errorf("package index: %s: %w", address, err)
		}
		page.Files[i].URL = link.String()
	}
	return page.Files, nil
}

// metadata reads the end of a remote wheel, where the directory of the archive is, and then its METADATA: half a
// megabyte of half a gigabyte.
func (w *webIndex) metadata(ctx context.Context, file indexFile) ([]byte, error) {
	if file.Size <= 0 {
		return nil, fmt.Errorf("package index: no size is given for %s", file.Filename)
	}
	remote := &remoteFile{ctx: ctx, index: w, file: file}
	return wheelMetadata(io.NewSectionReader(remote, 0, file.Size), file.Size, file.Filename)
}

// wheelMetadata reads METADATA out of a wheel.
func wheelMetadata(r io.ReaderAt, size int64, name string) ([]byte, error) {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, f := range archive.File {
		if ok, _ := path.Match("*.dist-info/METADATA", f.Name); !ok {
			continue
		}
		in, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer in.Close()
		data, err := io.ReadAll(io.LimitReader(in, 16<<20))
		if err != nil {
			return nil, fmt.Errorf("%s: METADATA: %w", name, err)
		}
		return data, nil
	}
	return nil, fmt.Errorf("%s has no METADATA", name)
}

// remoteFile reads parts of a file on a web server, a block at a time.
type remoteFile struct {
	ctx   context.Context
	index *webIndex
	file  indexFile
	start int64 // where block begins
	block []byte
}

const remoteBlock = 256 << 10

// ReadAt implements io.ReaderAt with range requests. It keeps the last block; it is not for several goroutines.
func (r *remoteFile) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= r.file.Size {
			return n, io.EOF
		}
		if at < r.start || at >= r.start+int64(len(r.block)) {
			if err := r.load(at / remoteBlock * remoteBlock); err != nil {
				return n, err
			}
		}
		n += copy(p[n:], r.block[at-r.start:])
	}
	return n, nil
}

func (r *remoteFile) load(start int64) error {
	end := min(start+remoteBlock, r.file.Size)
	response, err := r.index.get(r.ctx, r.file.URL, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", start, end-1)}})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK { // the server does not know ranges
		if _, err := io.CopyN(io.Discard, response.Body, start); err != nil {
			return err
		}
	}
	block := make([]byte, end-start)
	if _, err := io.ReadFull(response.Body, block); err != nil {
		return fmt.Errorf("%s: %w", r.file.URL, err)
	}
	r.start, r.block = start, block
	return nil
}

// folderIndex is a folder of wheels.
type folderIndex string

func (d folderIndex) files(ctx context.Context, name string) ([]indexFile, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var out []indexFile
	for _, e := range entries {
		first, _, _ := strings.Cut(e.Name(), "-")
		if normalise(first) != name || filepath.Ext(e.Name()) != ".whl" {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(string(d), e.Name())
		sum, err := sumFile(ctx, file)
		if err != nil {
			return nil, err
		}
		out = append(out, indexFile{Filename: e.Name(), URL: file, Hashes: map[string]string{"sha256": sum}, Size: info.Size()})
	}
	return out, nil
}

func (d folderIndex) metadata(_ context.Context, file indexFile) ([]byte, error) {
	data, err := os.Open(file.URL)
	if err != nil {
		return nil, err
	}
	metadata, err := wheelMetadata(data, file.Size, file.Filename)
	return metadata, errors.Join(err, data.Close())
}
