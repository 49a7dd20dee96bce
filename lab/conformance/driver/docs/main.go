// Command docs writes FEATURES.md: what a driver does for each feature, and what is not tested without it. It reads
// the comments of the features and faults, the protocol and the tests. Run it by `go generate`.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
)

//go:generate go run -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension . ../.. ../FEATURES.md

const heading = `<!-- Written by go generate from the features' comments, openapi.yaml and the tests. -->

# Features of a driver

A driver names in ` + "`/hello`" + ` what its cloud can do. The
paths and fields are those of [openapi.yaml](protocol/openapi.yaml). What is not named is not asked for, and its
tests are skipped by name; extended tests are counted. ` + "`lab conformance list`" + ` has all tests with what they
need.

| feature | what it says | what a driver has for it | core tests without it | extended |
|---|---|---|---|---|
`

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: docs FOLDER-OF-CONFORMANCE FEATURES.md")
	}
	text, err := table(os.Args[1])
	if err == nil {
		err = os.WriteFile(os.Args[2], []byte(heading+text), 0o644) //nolint:gosec // A document, for everyone.
	}
	if err != nil {
		log.Fatal(err)
	}
}

// table has a row for each feature that a driver can have.
func table(folder string) (string, error) {
	comments := map[string]string{}
	for _, file := range []string{"feature.go", "fault.go"} {
		if err := readComments(filepath.Join(folder, file), comments); err != nil {
			return "", err
		}
	}
	wanted, err := wantedOfDriver()
	if err != nil {
		return "", err
	}
	var rows strings.Builder
	for _, f := range conformance.AllFeatures() {
		name, isFault := strings.CutPrefix(string(f), "fault-")
		if isFault {
			wanted[string(f)] = wantedForFault(conformance.FaultKind(name))
		}
		if comments[name] == "" {
			return "", fmt.Errorf("feature %s has no comment", f)
		}
		core, extended := profiles.TestsThatNeed(f)
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %d |\n", f, comments[name], strings.Join(wanted[string(f)], ", "),
			quoted(core), extended)
	}
	return rows.String(), nil
}

// readComments adds the comment of each constant of a file, by the constant's value. A comment begins with the
// constant's name and a colon, or stands behind it.
func readComments(file string, comments map[string]string) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, decl := range parsed.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			literal, ok := value.Values[0].(*ast.BasicLit)
			if !ok {
				continue
			}
			name, err := strconv.Unquote(literal.Value)
			if err != nil {
				return err
			}
			text := value.Doc.Text() + value.Comment.Text()
			if text == "" {
				text = group.Doc.Text()
			}
			text = strings.TrimPrefix(strings.Join(strings.Fields(text), " "), value.Names[0].Name)
			comments[name] = strings.TrimPrefix(strings.TrimLeft(text, ": "), "is ")
		}
	}
	return nil
}

// forFeature matches what openapi.yaml says of paths and fields that belong to a feature.
var forFeature = regexp.MustCompile("For `([a-z0-9-]+)`")

// wantedOfDriver lists the paths and fields of each feature.
func wantedOfDriver() (map[string][]string, error) {
	spec, err := openapi3.NewLoader().LoadFromData(protocol.Spec)
	if err != nil {
		return nil, err
	}
	wanted := map[string][]string{}
	add := func(description, what string) {
		for _, match := range forFeature.FindAllStringSubmatch(description, -1) {
			wanted[match[1]] = append(wanted[match[1]], "`"+what+"`")
		}
	}
	for _, path := range spec.Paths.InMatchingOrder() {
		for method, operation := range spec.Paths.Value(path).Operations() {
			add(operation.Description, method+" "+path)
		}
	}
	for name, schema := range spec.Components.Schemas {
		for field, property := range schema.Value.Properties {
			add(property.Value.Description, name+"."+field)
		}
	}
	for feature := range wanted {
		slices.Sort(wanted[feature])
	}
	return wanted, nil
}

// wantedForFault says who makes a fault: the driver, or the suite's proxy, of which faultproxy says what it makes.
func wantedForFault(kind conformance.FaultKind) []string {
	proxy := "the proxy"
	switch kind {
	case conformance.FaultStuck, conformance.FaultBuildFails:
		return []string{"`POST /v1/faults`"}
	case conformance.FaultForeignNotFound, conformance.FaultNotFound:
		proxy += " with `Proxy.answers`"
	case conformance.FaultEmptyList, conformance.FaultPartialList:
		proxy += " with `ProxyRule.list`"
	case conformance.FaultMissingField:
		proxy += " with `ProxyRule.stateFields`"
	default:
		if strings.HasPrefix(string(kind), "missing-") {
			proxy += fmt.Sprintf(" with `%s` in `ProxyRule.fields`", conformance.FieldGroup(kind))
		}
	}
	return []string{proxy + ", or `POST /v1/faults`"}
}

// quoted joins names as code.
func quoted(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
