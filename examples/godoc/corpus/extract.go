package corpus

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/printer"
	"go/token"
	"strings"
)

// collector gathers the documented symbols of one package.
type collector struct {
	pkg     *doc.Package
	fset    *token.FileSet
	path    string
	symbols []Symbol
}

// add takes a symbol if it has documentation that is worth a question.
func (c *collector) add(name, kind, signature, text string) {
	paragraphs := c.paragraphs(text)
	if len(paragraphs) == 0 || signature == "" || strings.HasPrefix(paragraphs[0], "Deprecated:") {
		return
	}
	c.symbols = append(c.symbols, Symbol{Package: c.path, Name: name, Kind: kind, Signature: signature, Doc: paragraphs})
}

func (c *collector) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		if f.Level > 0 { // promoted from an embedded type: documented there
			continue
		}
		kind, name := "func", f.Name
		if f.Recv != "" {
			receiver, _, _ := strings.Cut(strings.TrimPrefix(f.Recv, "*"), "[")
			kind, name = "method", receiver+"."+f.Name
		}
		c.add(name, kind, c.function(f), f.Doc)
	}
}

func (c *collector) typ(t *doc.Type) {
	for _, spec := range t.Decl.Specs {
		if spec, ok := spec.(*ast.TypeSpec); ok && spec.Name.Name == t.Name {
			c.add(t.Name, "type", c.typeSpec(spec), t.Doc)
		}
	}
	c.values(t.Consts)
	c.values(t.Vars)
	c.funcs(t.Funcs)
	c.funcs(t.Methods)
}

// values takes constants and variables that have a comment of their own.
func (c *collector) values(groups []*doc.Value) {
	for _, group := range groups {
		kind := group.Decl.Tok.String()
		for _, spec := range group.Decl.Specs {
			spec, ok := spec.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || !spec.Names[0].IsExported() {
				continue
			}
			text := spec.Doc.Text()
			if text == "" && !group.Decl.Lparen.IsValid() {
				text = group.Doc
			}
			name := spec.Names[0].Name
			signature := kind + " " + base(c.path) + "." + name
			if spec.Type != nil {
				signature += " " + c.print(spec.Type)
			}
			c.add(name, kind, signature, text)
		}
	}
}

// function prints a declaration without its body: func strings.Cut(…), func (d *json.Decoder) Decode(…).
func (c *collector) function(f *doc.Func) string {
	decl := *f.Decl
	decl.Doc, decl.Body = nil, nil
	text := c.print(&decl)
	if f.Recv == "" {
		return strings.Replace(text, "func "+f.Name, "func "+base(c.path)+"."+f.Name, 1)
	}
	// The receiver's type is the last word in its parentheses.
	end := strings.IndexByte(text, ')')
	if end < 0 {
		return ""
	}
	receiver := text[:end]
	at := strings.LastIndexAny(receiver, " *(") + 1
	if i := strings.IndexByte(receiver, '['); i >= 0 { // of a generic type: before its parameters
		at = strings.LastIndexAny(receiver[:i], " *(") + 1
	}
	return text[:at] + base(c.path) + "." + text[at:]
}

// typeSpec prints the head of a type; of a struct or an interface only that it is one.
func (c *collector) typeSpec(spec *ast.TypeSpec) string {
	head := *spec
	head.Doc, head.Comment = nil, nil
	switch spec.Type.(type) {
	case *ast.StructType:
		head.Type = ast.NewIdent("struct")
	case *ast.InterfaceType:
		head.Type = ast.NewIdent("interface")
	}
	return "type " + base(c.path) + "." + c.print(&head)
}

// oneLine undoes what a parameter list over several lines leaves behind.
var oneLine = strings.NewReplacer("( ", "(", ", )", ")")

// print renders a node in one line.
func (c *collector) print(node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, c.fset, node); err != nil {
		return ""
	}
	return oneLine.Replace(strings.Join(strings.Fields(b.String()), " "))
}

// paragraphs renders the beginning of a doc comment, up to its first heading or code block, as plain text: one entry for
// each paragraph or list.
func (c *collector) paragraphs(text string) []string {
	parsed := c.pkg.Parser().Parse(text)
	plain := &comment.Printer{TextWidth: -1}
	var out []string
	for _, block := range parsed.Content {
		switch block.(type) {
		case *comment.Paragraph, *comment.List:
		default: // a heading begins another subject, code is not prose
			return out
		}
		text := strings.TrimSpace(string(plain.Text(&comment.Doc{Content: []comment.Block{block}, Links: parsed.Links})))
		if strings.HasPrefix(text, "Deprecated:") && len(out) > 0 {
			return nil // advice against the symbol is not what to learn about it
		}
		if text != "" {
			out = append(out, text)
		}
	}
	return out
}
