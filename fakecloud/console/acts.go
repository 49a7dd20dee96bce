package console

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
)

// maxInput is more bytes than any input of an act needs.
const maxInput = 1 << 10

// Act is something that a person can do on the page. It is a command: what the page does is what the
// command does.
type Act struct {
	// Verb is the button's text.
	Verb string `json:"verb"`
	// Command is its program and arguments; those of Inputs come after them.
	Command []string `json:"command"`
	Inputs  []Input  `json:"inputs,omitempty"`
	// Final says that it cannot be undone: the page asks first.
	Final bool `json:"final,omitempty"`
}

// Input is what a person chooses or writes before an act.
type Input struct {
	Label string `json:"label"`
	// Options are what can be chosen. Without any, a text is written, which is one argument.
	Options []Option `json:"options,omitempty"`
	// Text is what stands there at first.
	Text string `json:"text,omitempty"`
}

// Option is one of an input's. Its label is among the input's only once.
type Option struct {
	Label string   `json:"label"`
	Args  []string `json:"args,omitempty"`
}

// commandWith completes the command with what was chosen and written.
func (a Act) commandWith(given []string) ([]string, error) {
	command := slices.Clone(a.Command)
	if len(given) != len(a.Inputs) {
		return nil, fmt.Errorf("%s takes %d inputs, not %d", a.Verb, len(a.Inputs), len(given))
	}
	for i, in := range a.Inputs {
		if len(in.Options) == 0 {
			text := strings.TrimSpace(given[i])
			if text == "" || text[0] == '-' || len(text) > maxInput {
				return nil, fmt.Errorf("%s: write something that does not begin with \"-\"", in.Label)
			}
			command = append(command, text)
			continue
		}
		at := slices.IndexFunc(in.Options, func(o Option) bool { return o.Label == given[i] })
		if at < 0 {
			return nil, fmt.Errorf("%s: there is no %q any more", in.Label, given[i])
		}
		command = append(command, in.Options[at].Args...)
	}
	return command, nil
}

// RunCommand runs the command of an act. Its error is what the command says.
func RunCommand(cmd *exec.Cmd) error {
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(string(said)); text != "" {
		return errors.New(text)
	}
	return err
}

// serveActs lists what can be done with a thing (GET), and does it (POST).
func (p *Page) serveActs(w http.ResponseWriter, r *http.Request) {
	query, s := r.URL.Query(), sessionOf(r)
	if s.Access != MayChange {
		http.Error(w, "this page may only be read", http.StatusForbidden)
		return
	}
	acts, err := p.Acts(r.Context(), s, query.Get("subject"))
	if r.Method != http.MethodPost || err != nil {
		answerJSON(w, acts, err)
		return
	}
	at := slices.IndexFunc(acts, func(a Act) bool { return a.Verb == query.Get("verb") })
	if at < 0 {
		answerJSON(w, nil, errors.New("that cannot be done with it as it is now"))
		return
	}
	command, err := acts[at].commandWith(query["input"])
	if err == nil {
		err = p.Run(r.Context(), s, command)
		p.Log.Info("done on the page", "command", command, "error", err)
	}
	answerJSON(w, acts[at], err)
}
