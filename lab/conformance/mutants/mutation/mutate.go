package mutation

// Where a function can go wrong, and how its source is rewritten so that it can.

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// generator makes the mutants of a package, file by file and function by function.
type generator struct {
	loaded  *loadedPackage
	reached map[*types.Func][]string
	broken  map[string]bool // IDs of mutants that do not compile
	equals  map[string]int  // how many mutants there are of the same text in a function

	mutants []Mutant
	edits   map[string][]edit // by file

	file       string
	function   string
	interfaces []string
	signatures []*types.Signature // of the functions that are open, the innermost last
	parents    []ast.Node
	done       map[ast.Expr]bool // conditions
	order      int
}

// textMethods are those that make text for people.
var textMethods = []string{"Error", "String", "Unwrap", "cause"}

func (g *generator) mutatePackage() {
	g.edits = map[string][]edit{}
	for _, name := range g.loaded.fileNames() {
		g.file = name
		for _, d := range g.loaded.files[name].Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			f, _ := g.loaded.info.Defs[decl.Name].(*types.Func)
			interfaces, reached := g.reached[f]
			if reached && (decl.Recv == nil || !slices.Contains(textMethods, decl.Name.Name)) {
				g.interfaces = interfaces
				g.mutateFunction(f, decl)
			}
		}
	}
}

func (g *generator) mutateFunction(f *types.Func, decl *ast.FuncDecl) {
	g.function, g.done = f.Name(), map[ast.Expr]bool{}
	if recv := f.Signature().Recv(); recv != nil {
		t := recv.Type()
		if pointer, ok := t.(*types.Pointer); ok {
			t = pointer.Elem()
		}
		if named, ok := t.(*types.Named); ok {
			g.function = named.Obj().Name() + "." + f.Name()
		}
	}
	g.signatures, g.parents = []*types.Signature{f.Signature()}, nil
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		if n == nil {
			last := g.parents[len(g.parents)-1]
			g.parents = g.parents[:len(g.parents)-1]
			if _, ok := last.(*ast.FuncLit); ok {
				g.signatures = g.signatures[:len(g.signatures)-1]
			}
			return true
		}
		if g.isLogging(n) {
			return false
		}
		g.mutateNode(n)
		g.parents = append(g.parents, n)
		if lit, ok := n.(*ast.FuncLit); ok {
			g.signatures = append(g.signatures, g.loaded.info.TypeOf(lit).(*types.Signature))
		}
		return true
	})
}

// isLogging tells whether a node is a call of klog or fmt, whose arguments are words.
func (g *generator) isLogging(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	for fun := call.Fun; ; {
		switch f := fun.(type) {
		case *ast.SelectorExpr:
			fun = f.X
			continue
		case *ast.CallExpr:
			fun = f.Fun
			continue
		case *ast.Ident:
			pkg, ok := g.loaded.info.Uses[f].(*types.PkgName)
			return ok && (pkg.Imported().Name() == "klog" || pkg.Imported().Path() == "fmt")
		}
		return false
	}
}

func (g *generator) mutateNode(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		g.turnCondition(n.Cond)
	case *ast.ForStmt:
		g.turnCondition(n.Cond)
	case *ast.SwitchStmt:
		g.turnCases(n)
	case *ast.BinaryExpr:
		if n.Op == token.LAND || n.Op == token.LOR {
			g.turnCondition(n)
		}
	case *ast.ReturnStmt:
		g.mutateReturn(n)
	case *ast.AssignStmt:
		g.mutateAssignment(n)
	case *ast.ExprStmt:
		g.leaveOutCall(n)
	case *ast.CallExpr:
		g.dropCall(n)
	case *ast.CompositeLit:
		g.leaveOutFields(n)
	}
}

// add makes a mutant of a node. It returns false if the mutant does not compile, and is not to be
// written into the source.
func (g *generator) add(kind Kind, n ast.Node, what string) (Mutant, bool) {
	what = strings.Join(strings.Fields(what), " ")
	key := strings.Join([]string{g.file, g.function, string(kind), what}, ":")
	m := Mutant{
		ID: mutantID(g.file, g.function, kind, what, g.equals[key]), File: g.file,
		Line: g.loaded.fset.Position(n.Pos()).Line, Kind: kind, What: what, Interfaces: g.interfaces,
		Number: len(g.mutants) + 1,
	}
	g.equals[key]++
	g.mutants = append(g.mutants, m)
	return m, !g.broken[m.ID]
}

// text returns a node's source.
func (g *generator) text(n ast.Node) string {
	return string(g.loaded.sources[g.file][g.offset(n.Pos()):g.offset(n.End())])
}

func (g *generator) offset(p token.Pos) int { return g.loaded.fset.Position(p).Offset }

// wrap writes something before and after a node. Of two that wrap the same place, the one that comes
// first is the outer one.
func (g *generator) wrap(n ast.Node, before, after string) {
	g.order++
	from, to := g.offset(n.Pos()), g.offset(n.End())
	// What ends somewhere is written before what begins there.
	g.edits[g.file] = append(g.edits[g.file], edit{from, from, before, g.order}, edit{to, to, after, -g.order})
}

// replace writes something in the place of a source that no other edit touches.
func (g *generator) replace(from, to token.Pos, text string) {
	g.order++
	g.edits[g.file] = append(g.edits[g.file], edit{g.offset(from), g.offset(to), text, g.order})
}

// turnCondition turns a condition, and each operand of && and ||.
func (g *generator) turnCondition(e ast.Expr) {
	if e == nil || g.done[e] || !g.isVariable(e) {
		return
	}
	g.done[e] = true
	if m, ok := g.add(Condition, e, g.text(e)); ok {
		g.wrap(e, fmt.Sprintf("mutantCondition(%d, ", m.Number), ")")
	}
	if b, ok := e.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
		g.turnOperands(b, b.Op)
	}
}

// turnOperands turns those of a chain of the same operator: what is in the middle of the chain is
// no condition of its own.
func (g *generator) turnOperands(b *ast.BinaryExpr, op token.Token) {
	for _, e := range []ast.Expr{b.X, b.Y} {
		if chain, ok := e.(*ast.BinaryExpr); ok && chain.Op == op {
			g.done[e] = true
			g.turnOperands(chain, op)
		} else {
			g.turnCondition(e)
		}
	}
}

// isVariable tells whether an expression is a bool that is no constant.
func (g *generator) isVariable(e ast.Expr) bool {
	tv := g.loaded.info.Types[e]
	if tv.Type == nil || tv.Value != nil {
		return false
	}
	basic, ok := tv.Type.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// turnCases turns the conditions of a switch. One over a plain value is rewritten as a switch over
// comparisons.
func (g *generator) turnCases(s *ast.SwitchStmt) {
	tag := ""
	if s.Tag != nil {
		if !isPlain(s.Tag) {
			return
		}
		tag = g.text(s.Tag)
	}
	for _, c := range s.Body.List {
		for _, e := range c.(*ast.CaseClause).List {
			if tag == "" {
				g.turnCondition(e)
				continue
			}
			m, ok := g.add(Condition, e, tag+" == "+g.text(e))
			comparison := [2]string{tag + " == (", ")"}
			if ok {
				comparison = [2]string{fmt.Sprintf("mutantCondition(%d, %s == (", m.Number, tag), "))"}
			}
			g.wrap(e, comparison[0], comparison[1])
		}
	}
	if tag != "" {
		g.replace(s.Tag.Pos(), s.Tag.End(), "")
	}
}

// isPlain tells whether an expression is a variable or a field, which can be read several times.
func isPlain(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isPlain(e.X)
	}
	return false
}

// mutateReturn turns the bools that are returned, and returns the error as nil.
func (g *generator) mutateReturn(s *ast.ReturnStmt) {
	results := g.signatures[len(g.signatures)-1].Results()
	if len(s.Results) == 1 && results.Len() > 1 {
		g.mutateForwarded(s, results)
		return
	}
	for i, e := range s.Results {
		g.turnCondition(e)
		if i == results.Len()-1 && isError(results.At(i).Type()) && !g.loaded.info.Types[e].IsNil() {
			if m, ok := g.add(Error, e, g.text(e)); ok {
				g.wrap(e, fmt.Sprintf("mutantError(%d, ", m.Number), ")")
			}
		}
	}
}

// mutateForwarded returns the error as nil where all results of a call are returned.
func (g *generator) mutateForwarded(s *ast.ReturnStmt, results *types.Tuple) {
	last := results.Len() - 1
	if !isError(results.At(last).Type()) {
		return
	}
	m, ok := g.add(Error, s, g.text(s.Results[0]))
	if !ok {
		return
	}
	var names []string
	for i := range results.Len() {
		names = append(names, "mutantResult"+strconv.Itoa(i))
	}
	all := strings.Join(names, ", ")
	g.replace(s.Return, s.Return+token.Pos(len("return")), "{ "+all+" :=")
	g.wrap(emptyAt(s.End()), "", fmt.Sprintf("; return %s, mutantError(%d, %s) }",
		strings.Join(names[:last], ", "), m.Number, names[last]))
}

// emptyAt returns an empty node.
func emptyAt(at token.Pos) ast.Node { return &ast.BadExpr{From: at, To: at} }

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// mutateAssignment turns a bool that is assigned, and leaves out the assignment to a field or an
// element.
func (g *generator) mutateAssignment(s *ast.AssignStmt) {
	if len(s.Lhs) == 1 && s.Tok != token.DEFINE && g.isInList() {
		switch s.Lhs[0].(type) {
		case *ast.SelectorExpr, *ast.IndexExpr, *ast.StarExpr:
			g.leaveOut(Field, s)
		}
	}
	if len(s.Lhs) == len(s.Rhs) {
		for _, e := range s.Rhs {
			if _, plain := e.(*ast.Ident); !plain {
				g.turnCondition(e)
			}
		}
	}
}

// isInList tells whether the statement that is looked at is one of a list of statements.
func (g *generator) isInList() bool {
	switch g.parents[len(g.parents)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	}
	return false
}

func (g *generator) leaveOut(kind Kind, s ast.Stmt) {
	if m, ok := g.add(kind, s, g.text(s)); ok {
		g.wrap(s, fmt.Sprintf("if mutantKeeps(%d) { ", m.Number), " }")
	}
}

// leaveOutCall leaves out a call without results.
func (g *generator) leaveOutCall(s *ast.ExprStmt) {
	if call, ok := s.X.(*ast.CallExpr); ok && g.isInList() {
		if sig, ok := g.ofOwnInterface(call); ok && sig.Results().Len() == 0 {
			g.leaveOut(Call, s)
		}
	}
}

// dropCall drops a call with results.
func (g *generator) dropCall(call *ast.CallExpr) {
	sig, ok := g.ofOwnInterface(call)
	if !ok {
		return
	}
	results := sig.Results()
	if results.Len() == 0 || results.Len() > 2 || !isError(results.At(results.Len()-1).Type()) {
		return
	}
	result, named := "", true
	if results.Len() == 2 {
		result, named = g.typeText(results.At(0).Type())
	}
	if !named {
		return
	}
	m, ok := g.add(Call, call, g.text(call))
	if !ok {
		return
	}
	if result == "" {
		g.wrap(call, fmt.Sprintf("mutantCall(%d, func() error { return ", m.Number), " })")
	} else {
		g.wrap(call, fmt.Sprintf("mutantCallFor(%d, func() (%s, error) { return ", m.Number, result), " })")
	}
}

// ofOwnInterface tells whether a call is one of an interface that the package declares: by these it
// reaches the cloud, and what is remembered of it.
func (g *generator) ofOwnInterface(call *ast.CallExpr) (*types.Signature, bool) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, false
	}
	selection := g.loaded.info.Selections[selector]
	if selection == nil || selection.Kind() != types.MethodVal || !types.IsInterface(selection.Recv()) {
		return nil, false
	}
	f, ok := selection.Obj().(*types.Func)
	return f.Signature(), ok && f.Pkg() == g.loaded.types
}

// leaveOutFields leaves each field of a struct zero.
func (g *generator) leaveOutFields(lit *ast.CompositeLit) {
	t := g.loaded.info.TypeOf(lit)
	fields, ok := t.Underlying().(*types.Struct)
	if !ok || makesText(t) {
		return
	}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok || g.isZero(kv.Value) {
			continue
		}
		name := kv.Key.(*ast.Ident).Name
		for field := range fields.Fields() {
			if field.Name() == name {
				g.leaveOutField(kv, field.Type())
			}
		}
	}
}

func (g *generator) leaveOutField(kv *ast.KeyValueExpr, t types.Type) {
	typeName, named := g.typeText(t)
	if !named { // The type of the value will do, unless that is a constant's.
		typeName = ""
		if tv := g.loaded.info.Types[kv.Value]; tv.Value != nil {
			return
		}
	} else {
		typeName = "[" + typeName + "]"
	}
	if m, ok := g.add(Field, kv, g.text(kv)); ok {
		g.wrap(kv.Value, fmt.Sprintf("mutantField%s(%d, ", typeName, m.Number), ")")
	}
}

// makesText tells whether a type is an error, or makes text for people in another way.
func makesText(t types.Type) bool {
	f, ok := lookupMethod(types.NewPointer(t), nil, "Error")
	return ok && f.Signature().Params().Len() == 0
}

// isZero tells whether an expression is a constant that is zero, or nil.
func (g *generator) isZero(e ast.Expr) bool {
	tv := g.loaded.info.Types[e]
	return tv.IsNil() || tv.Value != nil && slices.Contains([]string{`""`, "0", "false"}, tv.Value.ExactString())
}

// typeText writes a type as this file can; false where the file does not import what that takes.
func (g *generator) typeText(t types.Type) (string, bool) {
	named := true
	text := types.TypeString(t, func(pkg *types.Package) string {
		if pkg == g.loaded.types {
			return ""
		}
		for _, spec := range g.loaded.files[g.file].Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err == nil && path == pkg.Path() {
				if spec.Name != nil {
					return spec.Name.Name
				}
				return pkg.Name()
			}
		}
		named = false
		return pkg.Name()
	})
	return text, named
}
