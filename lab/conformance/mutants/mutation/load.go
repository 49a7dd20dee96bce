package mutation

// The package as the compiler sees it. What it imports comes from the build cache, compiled.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// loadedPackage is a package with its types.
type loadedPackage struct {
	dir     string
	fset    *token.FileSet
	sources map[string][]byte // by the name of the file
	files   map[string]*ast.File
	types   *types.Package
	info    *types.Info
	imports types.Importer
}

// position identifies a line of a file.
type position struct {
	file string
	line int
}

// loadPackage reads and type-checks the package. Its imports are compiled if they are not yet.
func loadPackage(ctx context.Context, o Options) (*loadedPackage, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	p := &loadedPackage{
		dir: dir, fset: token.NewFileSet(), sources: map[string][]byte{}, files: map[string]*ast.File{},
		info: &types.Info{
			Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
			Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		},
	}
	names, err := goList(ctx, dir, o.BuildFlags, `{{.ImportPath}}{{range .GoFiles}}{{"\n"}}{{.}}{{end}}`)
	if err != nil {
		return nil, err
	}
	exports, err := goList(
		ctx, dir, o.BuildFlags, "{{if .Export}}{{.ImportPath}}\t{{.Export}}{{end}}", "-export", "-deps",
	)
	if err != nil {
		return nil, err
	}
	p.imports = importExports(p.fset, exports)
	for _, name := range names[1:] {
		if p.sources[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		p.files[name], err = parser.ParseFile(p.fset, name, p.sources[name], parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
	}
	config := types.Config{Importer: p.imports}
	p.types, err = config.Check(names[0], p.fset, p.sortedFiles(), p.info)
	return p, err
}

// goList returns the lines of `go list`.
func goList(ctx context.Context, dir string, buildFlags []string, format string, flags ...string) ([]string, error) {
	args := append([]string{"list", "-f", format}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(append(args, buildFlags...), ".")...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w\n%s", dir, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// importExports imports packages from the files that the compiler made of them.
func importExports(fset *token.FileSet, lines []string) types.Importer {
	exports := map[string]string{}
	for _, line := range lines {
		path, file, _ := strings.Cut(line, "\t")
		exports[path] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		file, known := exports[path]
		if !known {
			return nil, fmt.Errorf("package %s was not compiled", path)
		}
		return os.Open(file)
	})
}

// fileNames returns the names of the package's files, sorted.
func (p *loadedPackage) fileNames() []string { return slices.Sorted(maps.Keys(p.files)) }

func (p *loadedPackage) sortedFiles() []*ast.File {
	var files []*ast.File
	for _, name := range p.fileNames() {
		files = append(files, p.files[name])
	}
	return files
}

// fingerprint returns a hash of the sources.
func (p *loadedPackage) fingerprint() string {
	h := sha256.New()
	for _, name := range p.fileNames() {
		_, _ = fmt.Fprintf(h, "%s %d\n%s", name, len(p.sources[name]), p.sources[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// checkRewritten type-checks the rewritten sources. It returns the lines with errors: lines are those
// of the original, as no edit adds one.
func (p *loadedPackage) checkRewritten(rewritten map[string]string) (map[position]bool, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range append(p.fileNames(), switchFile) {
		source, changed := rewritten[filepath.Join(p.dir, name)]
		if !changed {
			source = string(p.sources[name])
		}
		f, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("the mutated source cannot be parsed: %w", err)
		}
		files = append(files, f)
	}
	lines := map[position]bool{}
	config := types.Config{Importer: p.imports, Error: func(err error) {
		var at types.Error
		if errors.As(err, &at) {
			where := at.Fset.Position(at.Pos)
			lines[position{where.Filename, where.Line}] = true
		}
	}}
	_, _ = config.Check(p.types.Path(), fset, files, nil)
	return lines, nil
}
