// Package corpus turns the documentation of the Go standard library into questions and answers for fine-tuning.
//
// Each documented symbol of a public package gives one conversation: a question about it, and an answer in a fixed form:
//
//	`func strings.Cut(s, sep string) (before, after string, found bool)`
//
//	Cut slices s around the first instance of sep, returning the text before and after sep. …
//
//	See https://pkg.go.dev/strings#Cut
//
// The text comes from the Go installation on the user's own machine. Its order, the wording of the questions and the
// split into training and evaluation rows depend on the sources and the seed alone.
package corpus

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Symbol is a documented name of the standard library.
type Symbol struct {
	// Package is the import path, such as "encoding/json".
	Package string
	// Name is the name within the package, "Cut" or "Decoder.Decode", or "" for the package itself.
	Name string
	// Kind is package, func, method, type, const or var.
	Kind string
	// Signature is the declaration in one line with the name qualified, such as "func strings.Cut(s, sep string) …".
	Signature string
	// Doc is the whole documentation as paragraphs of plain text.
	Doc []string
	// Ambiguous is set where another package has the same base name: crypto/rand and math/rand.
	Ambiguous bool
}

// Qualified returns the name as it is written in a program: json.Decoder.Decode, or encoding/json for a package.
func (s Symbol) Qualified() string {
	if s.Name == "" {
		return s.Package
	}
	return base(s.Package) + "." + s.Name
}

// URL returns the page of the symbol.
func (s Symbol) URL() string {
	if s.Name == "" {
		return "https://pkg.go.dev/" + s.Package
	}
	return "https://pkg.go.dev/" + s.Package + "#" + s.Name
}

// base is the name by which a package of the standard library is used.
func base(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "v2" { // math/rand/v2
		path = strings.TrimSuffix(path, "/v2")
		name = path[strings.LastIndexByte(path, '/')+1:]
	}
	return name
}

// Load reads the documented symbols of every public package under goroot/src, as Linux on amd64 sees them, sorted by
// package and name.
func Load(ctx context.Context, goroot string) ([]Symbol, error) {
	src := filepath.Join(goroot, "src")
	if _, err := os.Stat(filepath.Join(src, "builtin", "builtin.go")); err != nil {
		return nil, fmt.Errorf("corpus: %s is no Go installation with sources: %w", goroot, err)
	}
	platform := build.Default
	platform.GOROOT, platform.GOOS, platform.GOARCH, platform.CgoEnabled = goroot, "linux", "amd64", false
	var symbols []Symbol
	err := filepath.WalkDir(src, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !entry.IsDir() || dir == src {
			return nil
		}
		rel, err := filepath.Rel(src, dir)
		if err != nil {
			return err
		}
		switch rel = filepath.ToSlash(rel); {
		case rel == "cmd", strings.HasPrefix(entry.Name(), "_"), strings.HasPrefix(entry.Name(), "."),
			entry.Name() == "internal", entry.Name() == "vendor", entry.Name() == "testdata":
			return fs.SkipDir
		}
		found, err := loadPackage(&platform, dir, rel)
		if err != nil {
			return err
		}
		symbols = append(symbols, found...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	markAmbiguous(symbols)
	slices.SortStableFunc(symbols, func(a, b Symbol) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Name, b.Name))
	})
	return symbols, nil
}

// markAmbiguous sets Ambiguous on symbols, but not on packages, whose name is the whole path.
func markAmbiguous(symbols []Symbol) {
	owner := map[string]string{}
	shared := map[string]bool{}
	for _, s := range symbols {
		name := base(s.Package)
		if first, ok := owner[name]; ok && first != s.Package {
			shared[name] = true
		}
		owner[name] = s.Package
	}
	for i := range symbols {
		symbols[i].Ambiguous = symbols[i].Name != "" && shared[base(symbols[i].Package)]
	}
}

// loadPackage reads one folder; a folder without Go files for the platform has no symbols.
func loadPackage(platform *build.Context, dir, path string) ([]Symbol, error) {
	info, err := platform.ImportDir(dir, 0)
	if err != nil {
		if _, ok := err.(*build.NoGoError); ok {
			return nil, nil
		}
		return nil, err
	}
	if info.Name == "main" || info.Name == "builtin" {
		return nil, nil
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range info.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	pkg, err := doc.NewFromFiles(fset, files, path)
	if err != nil {
		return nil, err
	}
	c := collector{pkg: pkg, fset: fset, path: path}
	c.add("", "package", "package "+info.Name, pkg.Doc)
	c.values(pkg.Consts)
	c.values(pkg.Vars)
	c.funcs(pkg.Funcs)
	for _, t := range pkg.Types {
		c.typ(t)
	}
	return c.symbols, nil
}
