package lab

// The environment in which a shell or a program works with the lab.

import (
	"strings"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// Var is a variable of the environment.
type Var struct {
	Name, Value string
	// Before, unless "", separates the value from what the variable had, which
	// comes after it.
	Before string
}

// Environ is an environment, as os.Environ has it, with the variables in it.
func Environ(env []string, vars []Var) []string {
	for _, v := range vars {
		had := ""
		for _, other := range env { // The last counts.
			if name, value, _ := strings.Cut(other, "="); name == v.Name {
				had = value
			}
		}
		env = append(env, v.Name+"="+v.Join(had))
	}
	return env
}

// Join is its value in an environment in which it had another.
func (v Var) Join(had string) string {
	if v.Before == "" || had == "" {
		return v.Value
	}
	return v.Value + v.Before + had
}

// Env makes kubectl, fakecloud and lab speak to the lab.
func (l *Lab) Env() []Var {
	cloud := l.Cluster.Cloud()
	env := []Var{
		{Name: "LAB_NAME", Value: l.State.Name},
		{Name: "KUBECONFIG", Value: l.Cluster.Kubeconfig()},
		{Name: "FAKECLOUD_URL", Value: cloud.URL},
		{Name: "FAKECLOUD_TOKEN_FILE", Value: cloud.TokenFile(cluster.CallerOperator)},
		// Another lab's, in the same shell, may speak TLS where this one does not.
		{Name: "FAKECLOUD_CA_FILE", Value: cloud.CAFile},
	}
	if cloud.Network != "" {
		// All of it is on this machine, where no proxy could reach it.
		env = append(env, Var{Name: "NO_PROXY", Value: cloud.Network, Before: ","})
	}
	return append(env, Var{Name: "PATH", Value: strings.Join(l.BinDirs(), ":"), Before: ":"})
}
