package console

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/process"
)

// actsOn are what can be done with a thing in its present state, or with the whole lab if subject is "".
func actsOn(ctx context.Context, l *lab.Lab, picture Picture, subject string) ([]console.Act, error) {
	if subject == "" {
		return labActs(ctx, l)
	}
	t, _ := picture.Get(subject)
	if t.Kind == labscene.KindComponent && t.Name == local.ComponentCCM {
		return ccmActs(l, t), nil
	}
	return console.ActsOn(t), nil
}

// labActs are what can be done with the cloud, and with the CCM, wherever it runs.
func labActs(ctx context.Context, l *lab.Lab) ([]console.Act, error) {
	cloud, err := l.Cluster.Cloud().Client(cluster.CallerOperator)
	if err != nil {
		return nil, err
	}
	acts, err := console.CloudActs(ctx, cloud, cluster.CallerCCM)
	if l.Cluster.Traits().NoCloudProvider {
		return acts, err
	}
	return append(acts, console.Act{
		Verb: "start or stop the CCM", Command: []string{"lab", "--name=" + l.State.Name, "ccm"},
		Inputs: []console.Input{{Label: "how", Options: optionsOf("stop", "start", "restart")}},
	}, replaceCCM(l)), err
}

func ccmActs(l *lab.Lab, t scene.Object) []console.Act {
	do := func(verb string) console.Act {
		return console.Act{Verb: verb, Command: []string{"lab", "--name=" + l.State.Name, "ccm", verb}}
	}
	if t.Level == scene.LevelOK {
		return []console.Act{do("stop"), do("restart"), replaceCCM(l)}
	}
	return []console.Act{do("start"), replaceCCM(l)}
}

// replaceCCM has another program be the CCM: one that is beside the lab's own programs. No path comes from the page,
// so that its link does not open every program of the machine.
func replaceCCM(l *lab.Lab) console.Act {
	which := []console.Option{{Label: "the lab's own", Args: []string{"--own"}}}
	for _, file := range ccmsIn(l.BinDirs()[0]) {
		which = append(which, console.Option{Label: filepath.Base(file), Args: []string{file}})
	}
	speaks := []console.Option{{Label: "this cloud's API"}}
	for _, name := range identity.Dialects() {
		speaks = append(speaks, console.Option{Label: name, Args: []string{"--dialect=" + name}})
	}
	return console.Act{
		Verb: "replace the CCM", Command: []string{"lab", "--name=" + l.State.Name, "ccm", "use"},
		Inputs: []console.Input{{Label: "program", Options: which}, {Label: "it speaks", Options: speaks}},
	}
}

// ccmsIn are the programs in a folder whose names say that they are CCMs, without the lab's own.
func ccmsIn(dir string) (files []string) {
	entries, _ := os.ReadDir(dir) // Without the folder there are none.
	for _, e := range entries {
		isCCM := strings.Contains(e.Name(), "ccm") || strings.Contains(e.Name(), "cloud-controller-manager")
		file, err := exec.LookPath(filepath.Join(dir, e.Name()))
		if isCCM && err == nil && e.Name() != local.ComponentCCM {
			files = append(files, file)
		}
	}
	return files
}

func optionsOf(each ...string) (all []console.Option) {
	for _, o := range each {
		all = append(all, console.Option{Label: o, Args: []string{o}})
	}
	return all
}

// runCommand runs a command of the lab's programs as its operator does.
func runCommand(ctx context.Context, l *lab.Lab, command []string) error {
	program, err := os.Executable()
	if command[0] != "lab" {
		program, err = findProgram(l, command[0])
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, command[1:]...)
	cmd.Env = lab.Environ(process.Unmarked(), append(
		l.Env(), lab.Var{Name: "CCMLAB_HOME", Value: filepath.Dir(l.State.Path())},
	))
	return console.RunCommand(cmd)
}

// findProgram finds a program of the lab, or one of that name in the PATH.
func findProgram(l *lab.Lab, name string) (string, error) {
	for _, dir := range l.BinDirs() {
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil && dir != "" {
			return file, nil
		}
	}
	return exec.LookPath(name)
}
