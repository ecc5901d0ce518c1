// Command opsgen writes package torch/aten: a typed Go function for each operator of libtorch.
//
// Its input is schemas.txt, the operators of one libtorch as its dispatcher prints them. So generating needs no
// libtorch, and a test can tell whether the committed files are what the list gives. With -dump, opsgen writes the list
// anew from the library that is installed.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/internal/capi"
)

//go:embed schemas.txt
var committed string

func main() {
	dump := flag.String("dump", "", "write the schemas of the installed libtorch to this `file`, and generate nothing")
	out := flag.String("out", ".", "`folder` of the generated files")
	flag.Parse()
	if err := run(*dump, *out); err != nil {
		fmt.Fprintln(os.Stderr, "opsgen:", err)
		os.Exit(1)
	}
}

func run(dump, out string) error {
	if dump != "" {
		text, err := installed()
		if err != nil {
			return err
		}
		return os.WriteFile(dump, []byte(text), 0o644)
	}
	schemas, err := parseAll(committed)
	if err != nil {
		return err
	}
	files, functions, skipped, err := generate(schemas)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(out, "zz_*.go"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, kept := files[filepath.Base(path)]; !kept {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%d functions in %d files\n", len(functions), len(files))
	for _, s := range skipped {
		fmt.Println("skipped", s)
	}
	return nil
}

// installed gives the schemas of namespace aten in the library that is installed.
func installed() (string, error) {
	if err := capi.Load(); err != nil {
		return "", err
	}
	all, err := capi.ListOps()
	if err != nil {
		return "", err
	}
	version, err := installedVersion()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", versionPrefix, version)
	for line := range strings.Lines(all) {
		if strings.HasPrefix(line, "aten::") {
			b.WriteString(line)
		}
	}
	return b.String(), nil
}

const versionPrefix = "# libtorch "

// installedVersion is the version of the library that is installed, e.g. "2.13.0".
func installedVersion() (string, error) {
	text, err := capi.Versions()
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(text, "\n")
	built, _, _ := strings.Cut(strings.TrimPrefix(first, "built "), ",")
	return built, nil
}

// parseAll reads a list of schemas. Lines that begin with "#" are comments.
func parseAll(text string) ([]*schema, error) {
	var list []*schema
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		s, err := parseSchema(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}
