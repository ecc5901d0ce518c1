package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module   = "github.com/gofsdp/gofsdp"
	maxLines = 600
)

// source is one file of the repository.
type source struct {
	path   string // from the root, with slashes
	folder string
	text   []byte
	file   *ast.File // nil unless it is Go
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) isGenerated() bool {
	return regexp.MustCompile(`(?m)^(//|#) Code generated .* DO NOT EDIT\.$`).Match(s.text)
}

// repository reads every source file once.
func repository(t *testing.T) []source {
	root := "../.."
	var files []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && p != root
			if hidden || slices.Contains([]string{"testdata", "build", "runs", "shared"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".cc", ".h", ".cu", ".cuh", ".cmake"}, filepath.Ext(p)) {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(rel), folder: path.Dir(filepath.ToSlash(rel)), text: text}
		if filepath.Ext(p) == ".go" {
			if s.file, err = parser.ParseFile(token.NewFileSet(), p, text, parser.ParseComments); err != nil {
				return err
			}
		}
		files = append(files, s)
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func imports(s source) []string {
	var out []string
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range repository(t) {
		if s.file == nil || s.isTest() || s.folder == "." {
			continue
		}
		mine, entry, ok := level(s.folder)
		if !ok {
			t.Errorf("%s: its folder is in no layer: add it to layers", s.path)
			continue
		}
		for _, imported := range imports(s) {
			folder, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			theirs, theirEntry, _ := level(folder)
			if entry != theirEntry && theirs >= mine {
				t.Errorf("%s imports %s, which is above it", s.path, folder)
			}
		}
	}
}

func TestEmbeddedPackagesBringNoDependencies(t *testing.T) {
	for _, s := range repository(t) {
		if s.file == nil || s.isTest() || !underAny(s.folder, stdOnly) {
			continue
		}
		for _, imported := range imports(s) {
			first, _, _ := strings.Cut(imported, "/")
			if strings.Contains(first, ".") && !strings.HasPrefix(imported, module+"/") && first != "golang.org" {
				t.Errorf("%s imports %s: only the standard library and golang.org/x may be used here", s.path, imported)
			}
		}
	}
}

func TestCgoLivesInOnePlace(t *testing.T) {
	for _, s := range repository(t) {
		if s.file == nil {
			continue
		}
		if slices.Contains(imports(s), "C") && !slices.Contains(cgoFolders, s.folder) {
			t.Errorf("%s imports C: only %v may", s.path, cgoFolders)
		}
		if under(s.folder, "csrc") {
			t.Errorf("%s: csrc holds no Go file, or go build would compile the C++ next to it", s.path)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range repository(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines && !s.isGenerated() {
			t.Errorf("%s has %d lines, more than %d: cut it by idea", s.path, n, maxLines)
		}
	}
}

func TestPackagesHaveComments(t *testing.T) {
	documented := map[string]int{}
	for _, s := range repository(t) {
		if s.file == nil || s.isTest() {
			continue
		}
		documented[s.folder] += 0
		if s.file.Doc != nil && len(strings.TrimSpace(s.file.Doc.Text())) > 0 {
			documented[s.folder]++
		}
	}
	for folder, n := range documented {
		if n != 1 {
			t.Errorf("package %s has %d package comments, want 1", folder, n)
		}
	}
}

// selfExplanatory methods implement an interface of the standard library.
var selfExplanatory = []string{"Error", "String", "Unwrap", "Is", "Len", "Less", "Swap", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText"}

func TestExportedIdentifiersHaveComments(t *testing.T) {
	for _, s := range repository(t) {
		if s.file == nil || s.isTest() || s.isGenerated() || s.file.Name.Name == "main" {
			continue
		}
		missing := func(name string) { t.Errorf("%s: exported %s has no comment", s.path, name) }
		for _, decl := range s.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) &&
					(d.Recv == nil || !slices.Contains(selfExplanatory, d.Name.Name)) {
					missing(d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							missing(spec.Name.Name)
						}
					case *ast.ValueSpec:
						if spec.Names[0].IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							missing(spec.Names[0].Name)
						}
					}
				}
			}
		}
	}
}

// exportedReceiver is true for functions, and for methods of exported types.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return true
		}
	}
}

func TestPlacedFoldersExist(t *testing.T) {
	var named []string
	for _, layer := range layers {
		named = append(named, layer.folders...)
	}
	for _, folder := range slices.Concat(named, stdOnly, cgoFolders) {
		require.DirExists(t, filepath.Join("../..", filepath.FromSlash(folder)))
	}
}

func TestLevel(t *testing.T) {
	at := func(folder string) int {
		n, _, ok := level(folder)
		require.True(t, ok, folder)
		return n
	}
	require.Less(t, at("internal/errorfile"), at("internal/capi"))
	require.Less(t, at("torch"), at("torch/aten"))
	require.Less(t, at("torch"), at("torch/nn"))
	require.Less(t, at("fsdp"), at("models/llama"))
	require.Equal(t, at("cmd"), at("cmd/gofsdp"))
	_, _, ok := level("torchvision")
	require.False(t, ok)
}
