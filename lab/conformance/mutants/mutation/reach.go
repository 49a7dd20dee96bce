package mutation

// Which functions the methods of the interfaces reach.

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// reachedFunctions returns the functions of the package that the methods of the interfaces call, directly
// or not, with the names of those interfaces. A function that is only mentioned counts as called.
func (p *loadedPackage) reachedFunctions(interfaces []string) (map[*types.Func][]string, error) {
	declared := p.declaredFunctions()
	calls := map[*types.Func][]*types.Func{}
	for f, decl := range declared {
		calls[f] = p.mentionedFunctions(decl)
	}
	reached := map[*types.Func][]string{}
	for _, name := range interfaces {
		roots, err := p.methodsOfImplementers(name)
		if err != nil {
			return nil, err
		}
		short := name[strings.LastIndex(name, ".")+1:]
		for waiting := roots; len(waiting) > 0; {
			f := waiting[0]
			waiting = waiting[1:]
			if _, ours := declared[f]; !ours || slices.Contains(reached[f], short) {
				continue
			}
			reached[f] = append(reached[f], short)
			slices.Sort(reached[f])
			waiting = append(waiting, calls[f]...)
		}
	}
	return reached, nil
}

func (p *loadedPackage) declaredFunctions() map[*types.Func]*ast.FuncDecl {
	declared := map[*types.Func]*ast.FuncDecl{}
	for _, file := range p.files {
		for _, d := range file.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok && decl.Body != nil {
				if f, ok := p.info.Defs[decl.Name].(*types.Func); ok {
					declared[f] = decl
				}
			}
		}
	}
	return declared
}

// mentionedFunctions returns the functions that a function mentions and, where that is a method of an
// interface of this package, the methods of all types that implement it.
func (p *loadedPackage) mentionedFunctions(decl *ast.FuncDecl) []*types.Func {
	var all []*types.Func
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		f, ok := p.info.Uses[id].(*types.Func)
		if !ok || f.Pkg() != p.types {
			return true
		}
		f = f.Origin()
		all = append(all, f)
		if recv := f.Signature().Recv(); recv != nil {
			if i, ok := recv.Type().Underlying().(*types.Interface); ok {
				all = append(all, p.implementations(i, f.Name())...)
			}
		}
		return true
	})
	return all
}

// implementations returns the methods of this name of all types of the package that implement i.
func (p *loadedPackage) implementations(i *types.Interface, method string) []*types.Func {
	var all []*types.Func
	scope := p.types.Scope()
	for _, name := range scope.Names() {
		named, ok := scope.Lookup(name).(*types.TypeName)
		if !ok || types.IsInterface(named.Type()) {
			continue
		}
		pointer := types.NewPointer(named.Type())
		if !types.Implements(pointer, i) {
			continue
		}
		if f, ok := lookupMethod(pointer, p.types, method); ok {
			all = append(all, f)
		}
	}
	return all
}

func lookupMethod(t types.Type, pkg *types.Package, name string) (*types.Func, bool) {
	object, _, _ := types.LookupFieldOrMethod(t, true, pkg, name)
	f, ok := object.(*types.Func)
	return f, ok
}

// methodsOfImplementers returns the methods of an interface on the types of the package that implement
// it. The interface is PATH.NAME.
func (p *loadedPackage) methodsOfImplementers(name string) ([]*types.Func, error) {
	dot := strings.LastIndex(name, ".")
	pkg, err := p.imports.Import(name[:dot])
	if err != nil {
		return nil, err
	}
	object := pkg.Scope().Lookup(name[dot+1:])
	if object == nil {
		return nil, fmt.Errorf("there is no %s", name)
	}
	i, ok := object.Type().Underlying().(*types.Interface)
	if !ok {
		return nil, fmt.Errorf("%s is no interface", name)
	}
	var all []*types.Func
	for method := range i.Methods() {
		all = append(all, p.implementations(i, method.Name())...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing in %s implements %s", p.types.Path(), name)
	}
	return all, nil
}
