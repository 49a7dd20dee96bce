package mutation

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// example is a package with one of everything that is mutated.
const example = `package example

import (
	"errors"
	"fmt"
	"io"
)

type cloud interface {
	Get(id string) (*Thing, error)
	Delete(id string) error
	Note(id string)
}

type Thing struct {
	Name, State string
	Size        int
}

type closer struct{ cloud cloud }

var _ io.Closer = (*closer)(nil)

func (c *closer) Close() error {
	_, err := c.find("a", 3)
	return err
}

func (c *closer) find(id string, size int) (*Thing, error) {
	if id == "" && size > 1 {
		return nil, errors.New("no id")
	}
	found, err := c.cloud.Get(id)
	if err != nil {
		return nil, fmt.Errorf("finding: %w", err)
	}
	switch found.State {
	case "broken", "gone":
		return nil, c.cloud.Delete(id)
	}
	c.cloud.Note(id)
	found.Size = size
	return c.copyOf(found)
}

func (c *closer) copyOf(t *Thing) (*Thing, error) {
	return &Thing{Name: t.Name, Size: t.Size}, nil
}

func unreached(ok bool) bool {
	if ok {
		return false
	}
	return ok
}

var Unreached = unreached

func Describe(c cloud, id string, size int) string {
	t, err := (&closer{c}).find(id, size)
	return fmt.Sprint(t, err)
}
`

const exampleMain = `package main

import (
	"errors"
	"fmt"

	"example.org/mutated/example"
)

func main() {
	describe("a", "", 3)
	describe("a", "gone", 3)
	describe("", "", 3)
	describe("", "", 1)
}

func describe(id, state string, size int) {
	w := &world{state: state}
	fmt.Println(example.Describe(w, id, size), w.log)
}

type world struct{ state, log string }

func (w *world) Get(id string) (*example.Thing, error) {
	w.log += " get"
	if id == "" {
		return nil, errors.New("not there")
	}
	return &example.Thing{Name: id, State: w.state, Size: 1}, nil
}
func (w *world) Delete(string) error { w.log += " delete"; return errors.New("denied") }
func (w *world) Note(string)         { w.log += " note" }
`

func writeExample(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for file, text := range map[string]string{
		"go.mod": "module example.org/mutated\n\ngo 1.26\n", "example/example.go": example, "main.go": exampleMain,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	return root
}

func generate(t *testing.T, root string) *Set {
	t.Helper()
	set, err := Generate(t.Context(), Options{Dir: filepath.Join(root, "example"), Interfaces: []string{"io.Closer"}})
	require.NoError(t, err)
	return set
}

// Each mutant of the example, by what it mutates, and what it makes of the program's four lines, in
// which "." is a line as it is without a mistake.
func TestEachMutantChangesWhatTheProgramDoes(t *testing.T) {
	want := map[string]string{
		`condition id == "" && size > 1`:       "<nil> no id | <nil> no id | <nil> finding: not there get | <nil> no id",
		`condition id == ""`:                   "<nil> no id | <nil> no id | <nil> finding: not there get | .",
		`condition size > 1`:                   ". | . | <nil> finding: not there get | <nil> no id",
		`condition err != nil`:                 "it panics",
		`condition found.State == "broken"`:    "<nil> denied get delete | . | . | .",
		`condition found.State == "gone"`:      "<nil> denied get delete | &{a 3} <nil> get note | . | .",
		`error errors.New("no id")`:            ". | . | <nil> <nil> | .",
		`error fmt.Errorf("finding: %w", err)`: ". | . | . | <nil> <nil> get",
		`error c.cloud.Delete(id)`:             ". | <nil> <nil> get delete | . | .",
		`error err`:                            ". | . | . | .", // of Close, which is not called
		`error c.copyOf(found)`:                ". | . | . | .", // which gives none
		`call c.cloud.Get(id)`:                 "&{ 3} <nil> note | &{ 3} <nil> note | . | &{ 1} <nil> note",
		`call c.cloud.Delete(id)`:              ". | <nil> <nil> get | . | .",
		`call c.cloud.Note(id)`:                "&{a 3} <nil> get | . | . | .",
		`field found.Size = size`:              "&{a 1} <nil> get note | . | . | .",
		`field Name: t.Name`:                   "&{ 3} <nil> get note | . | . | .",
		`field Size: t.Size`:                   "&{a 0} <nil> get note | . | . | .",
	}
	root := writeExample(t)
	set := generate(t, root)
	assert.Empty(t, set.Broken)
	program := buildExample(t, root, set)
	asItIs, err := runExample(t, program, 0)
	require.NoError(t, err)
	require.Len(t, asItIs, 4)
	got := map[string]string{}
	for _, m := range set.Mutants {
		assert.Equal(t, []string{"Closer"}, m.Interfaces)
		what := string(m.Kind) + " " + m.What
		lines, err := runExample(t, program, m.Number)
		if err != nil {
			got[what] = "it panics"
			continue
		}
		for i := range lines {
			if lines[i] == asItIs[i] {
				lines[i] = "."
			}
		}
		got[what] = strings.Join(lines, " | ")
	}
	assert.Equal(t, want, got)
}

func buildExample(t *testing.T, root string, set *Set) (program string) {
	t.Helper()
	overlay, err := set.WriteOverlay(t.TempDir())
	require.NoError(t, err)
	program = filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay="+overlay, "-o", program, ".")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// runExample runs the program with a mutant, 0 for none. Its lines have one space between words.
func runExample(t *testing.T, program string, mutant int) ([]string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{ActiveVariable + "=" + strconv.Itoa(mutant)}
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return lines, err
}

// A mutant counts as reached where it would have made a difference.
func TestReached(t *testing.T) {
	root := writeExample(t)
	set := generate(t, root)
	reached := filepath.Join(t.TempDir(), "reached")
	cmd := exec.CommandContext(t.Context(), buildExample(t, root, set))
	cmd.Env = []string{ReachedVariable + "=" + reached}
	require.NoError(t, cmd.Run())
	numbers, err := set.ReadReached(reached)
	require.NoError(t, err)
	var not []string
	for _, m := range set.Mutants {
		if !numbers[m.ID] {
			not = append(not, string(m.Kind)+" "+m.What)
		}
	}
	assert.ElementsMatch(t, []string{"error err", "error c.copyOf(found)"}, not)
}

// An edit elsewhere leaves the IDs as they are.
func TestIDsAreStable(t *testing.T) {
	root := writeExample(t)
	before := map[string]bool{}
	for _, m := range generate(t, root).Mutants {
		assert.False(t, before[m.ID], "two mutants are called %s", m.ID)
		before[m.ID] = true
		assert.Regexp(t, `^example\.go:[\w.]+:(condition|call|error|field):[0-9a-f]{6}$`, m.ID)
	}
	place := "\tfound.Size = size\n"
	edited := strings.Replace(example, place, "\tif size < 0 {\n\t\tsize = 0\n\t}\n"+place, 1)
	require.NoError(t, os.WriteFile(filepath.Join(root, "example", "example.go"), []byte(edited), 0o600))
	after := generate(t, root).Mutants
	assert.Len(t, after, len(before)+1)
	for id := range before {
		assert.Contains(t, idsOf(after), id)
	}
}

func idsOf(all []Mutant) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestUnknownInterface(t *testing.T) {
	dir := filepath.Join(writeExample(t), "example")
	for name, problem := range map[string]string{
		"io.Nothing": "there is no io.Nothing", "io.SeekStart": "is no interface",
		"io.Seeker": "nothing in example.org/mutated/example",
	} {
		_, err := Generate(context.Background(), Options{Dir: dir, Interfaces: []string{name}})
		assert.ErrorContains(t, err, problem)
	}
}
