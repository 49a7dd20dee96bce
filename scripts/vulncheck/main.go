// vulncheck looks up in the Go vulnerability database what each module of the repository is made
// of, with govulncheck. It fails if it finds a vulnerability that is not in accepted.txt, or if
// accepted.txt has an entry that is no longer needed. `make vulncheck` calls it, from the root of a
// clone.
//
// It scans by package: a vulnerable package that is compiled into a program counts, whether its
// vulnerable functions are called or not. Call analysis takes gigabytes of memory and minutes for
// each module with Kubernetes in it.
//
// The database comes as a Go module, from the same proxy as the build's other modules. Its version is fixed, so that
// what is published tomorrow fails no change that has nothing to do with it; `-db latest` is the newest.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// database is the module with the vulnerability database (https://go.dev/doc/security/vuln/database), version
	// the one that accepted.txt is about.
	database = "golang.org/x/vulndb"
	version  = "v0.0.0-20261105234957-e22db6528018"
	// standardLibrary is the database's name for the standard library.
	standardLibrary = "stdlib"
)

//go:embed accepted.txt
var acceptedText string

func main() {
	db := flag.String("db", version, "`VERSION` of the database, the module "+database)
	flag.Parse()
	if err := checkModules(os.Stdout, *db); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

// checkModules looks up all modules in this version of the database.
func checkModules(out io.Writer, version string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	accepted, err := parseAccepted(acceptedText)
	if err != nil {
		return err
	}
	db, err := downloadDatabase(ctx, out, version)
	if err != nil {
		return err
	}
	dirs, err := listModules(ctx)
	if err != nil {
		return err
	}
	tool, err := runCommand(ctx, ".", "go", "tool", "-modfile=scripts/tools/go.mod", "-n", "govulncheck")
	if err != nil {
		return err
	}
	r := newResult(accepted)
	for _, dir := range dirs {
		findings, err := scanModule(ctx, strings.TrimSpace(string(tool)), db, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		r.recordFindings(out, dir, findings)
	}
	err = r.compareWithAccepted(out)
	_, _ = fmt.Fprintf(out, "%d modules checked in %s\n", len(dirs), time.Since(began).Round(time.Second))
	return err
}

// downloadDatabase puts the database into Go's module cache, and returns its URL there.
func downloadDatabase(ctx context.Context, out io.Writer, version string) (string, error) {
	// Outside of a module, whose go.mod would choose the version. The JSON has the error as well.
	text, err := runCommand(ctx, os.TempDir(), "go", "mod", "download", "-json", database+"@"+version)
	var module struct{ Version, Dir, Error string }
	if json.Unmarshal(text, &module) == nil && module.Error != "" {
		err = errors.New(module.Error)
	}
	if err != nil {
		return "", fmt.Errorf("the vulnerability database: %w", err)
	}
	_, _ = fmt.Fprintf(out, "%s is of %s\n", database, module.Version)
	return "file://" + filepath.Join(module.Dir, "data", "osv"), nil
}

// listModules lists the repository's folders that have a go.mod.
func listModules(ctx context.Context) ([]string, error) {
	files, err := runCommand(ctx, ".", "git", "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for file := range strings.FieldsSeq(string(files)) {
		dirs = append(dirs, filepath.Dir(file))
	}
	return dirs, nil
}

// runCommand runs a command in a folder and returns its output, even if it fails.
func runCommand(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, strings.TrimSpace(stderr.String()))
	}
	return text, err
}

// finding is a vulnerability in a package that a module is made of.
type finding struct {
	ID, Summary            string
	Module, Version, Fixed string
}

// scanModule finds the vulnerabilities in a module's packages and tools, and in what they import.
func scanModule(ctx context.Context, tool, db, dir string) ([]finding, error) {
	args := []string{"-db", db, "-scan", "package", "-format", "json"}
	for _, pattern := range []string{"./...", "tool"} {
		// govulncheck fails on a pattern that matches nothing.
		packages, err := runCommand(ctx, dir, "go", "list", pattern)
		if err != nil {
			return nil, err
		}
		if len(packages) > 0 {
			args = append(args, pattern)
		}
	}
	text, err := runCommand(ctx, dir, tool, args...)
	if err != nil {
		return nil, err
	}
	return parseReport(bytes.NewReader(text))
}

// parseReport reads govulncheck's JSON, a stream of messages: a vulnerability's description comes
// before where it was found. A module of which no package is imported does not count. Each finding
// is returned once, sorted by ID.
func parseReport(r io.Reader) ([]finding, error) {
	type message struct {
		OSV     *struct{ ID, Summary string }
		Finding *struct {
			OSV          string
			FixedVersion string `json:"fixed_version"`
			Trace        []struct{ Module, Version, Package string }
		}
	}
	summaries, found := map[string]string{}, map[string]finding{}
	for messages := json.NewDecoder(r); ; {
		var m message
		if err := messages.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("govulncheck's report: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if m.Finding != nil && len(m.Finding.Trace) > 0 && m.Finding.Trace[0].Package != "" {
			id, at := m.Finding.OSV, m.Finding.Trace[0]
			found[id+" "+at.Module] = finding{id, summaries[id], at.Module, at.Version, m.Finding.FixedVersion}
		}
	}
	var findings []finding
	for _, key := range slices.Sorted(maps.Keys(found)) {
		findings = append(findings, found[key])
	}
	return findings, nil
}

// result is what was found in all modules.
type result struct {
	accepted  map[string]bool     // By "FOLDER MODULE ID"; true once it was found.
	toolchain map[string]struct{} // The Go versions that fix what was found in the standard library.
	refused   int                 // The number of vulnerabilities that are not accepted.
}

func newResult(accepted []string) *result {
	r := &result{accepted: map[string]bool{}, toolchain: map[string]struct{}{}}
	for _, key := range accepted {
		r.accepted[key] = false
	}
	return r
}

// recordFindings prints what was found in a module and is not accepted.
func (r *result) recordFindings(out io.Writer, dir string, findings []finding) {
	for _, f := range findings {
		if f.Module == standardLibrary {
			r.toolchain[f.Fixed] = struct{}{}
			continue
		}
		key := dir + " " + f.Module + " " + f.ID
		if _, ok := r.accepted[key]; ok {
			r.accepted[key] = true
			continue
		}
		r.refused++
		fix := "no fix"
		if f.Fixed != "" {
			fix = "fixed in " + f.Fixed
		}
		_, _ = fmt.Fprintf(out, "%s %s, %s: %s\n", key, f.Version, fix, f.Summary)
	}
}

// compareWithAccepted returns an error unless exactly the accepted vulnerabilities were found. It only reports
// those of the standard library: the machine's Go has them, and no change of the repository fixes it.
func (r *result) compareWithAccepted(out io.Writer) error {
	if len(r.toolchain) > 0 {
		_, _ = fmt.Fprintf(out, "this machine's Go has vulnerabilities, fixed in %s\n",
			strings.Join(slices.Sorted(maps.Keys(r.toolchain)), ", "))
	}
	stale := 0
	for _, key := range slices.Sorted(maps.Keys(r.accepted)) {
		if !r.accepted[key] {
			stale++
			_, _ = fmt.Fprintf(out, "%s is not found, but accepted\n", key)
		}
	}
	if r.refused+stale > 0 {
		return fmt.Errorf("%d vulnerabilities to fix, or to accept in scripts/vulncheck/accepted.txt with the reason; "+
			"%d to remove from there", r.refused, stale)
	}
	_, _ = fmt.Fprintf(out, "no vulnerability but the %d that are accepted\n", len(r.accepted))
	return nil
}

// parseAccepted reads lines of a folder, a module, IDs with commas between them, and the reason why
// they are accepted there. It returns "FOLDER MODULE ID" for each ID.
func parseAccepted(text string) ([]string, error) {
	var accepted []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " ", 4)
		if len(fields) < 4 || !strings.HasPrefix(fields[2], "GO-") {
			return nil, fmt.Errorf("accepted.txt: %q is not a folder, a module, IDs and a reason", line)
		}
		for id := range strings.SplitSeq(fields[2], ",") {
			accepted = append(accepted, fields[0]+" "+fields[1]+" "+id)
		}
	}
	return accepted, nil
}
