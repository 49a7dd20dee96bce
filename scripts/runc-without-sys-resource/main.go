// runc-without-sys-resource is runc for machines whose bounding set lacks
// CAP_SYS_RESOURCE: there runc cannot give it to anybody, and every
// `docker run --privileged` and `docker exec --privileged` fails with "unable
// to apply caps". It takes that one capability out of what is asked, then
// becomes runc. scripts/docker-engine makes it the engine's default runtime.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const dropped = "CAP_SYS_RESOURCE"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runc-without-sys-resource:", err)
		os.Exit(1)
	}
}

// run returns only when it could not become runc.
func run(args []string) error {
	if err := rewrite(args); err != nil {
		return err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// rewrite changes the files that args name: the bundle of a create or run, the
// process of an exec.
func rewrite(args []string) error {
	if bundle := option(args, "--bundle", "-b"); bundle != "" {
		if err := rewriteFile(filepath.Join(bundle, "config.json"), func(spec map[string]any) bool {
			process, _ := spec["process"].(map[string]any)
			return drop(process)
		}); err != nil {
			return err
		}
	}
	if process := option(args, "--process", "-p"); process != "" {
		return rewriteFile(process, drop)
	}
	return nil
}

// option is the value of the last of an option's mentions.
func option(args []string, names ...string) (value string) {
	for i, arg := range args {
		name, given, ok := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(names, name):
		case ok:
			value = given
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// drop takes the capability out of all of a process's sets; it says whether one
// had it.
func drop(process map[string]any) (changed bool) {
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		list, _ := set.([]any)
		kept := slices.DeleteFunc(list, func(c any) bool { return c == dropped })
		if len(kept) < len(list) {
			sets[name], changed = kept, true
		}
	}
	return changed
}

// rewriteFile writes only what was changed. A file that is not there is for
// runc to complain of.
func rewriteFile(file string, change func(map[string]any) bool) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var content map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // A float64 would round 64-bit limits.
	if err := decoder.Decode(&content); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if !change(content) {
		return nil
	}
	if data, err = json.Marshal(content); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600) // The mode is for a new file: this one keeps its own.
}
