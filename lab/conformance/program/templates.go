package program

// Templates of arguments, environment and configuration, and the values that they can name.

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"text/template"
)

// Values are what a CCM's templates can name, as {{.Kubeconfig}}.
type Values struct {
	// Kubeconfig is a file: the way to the cluster.
	Kubeconfig string
	// CloudConfig is a file: the program's ConfigTemplate filled in, else what
	// the lab gives its own CCM.
	CloudConfig string
	// ClusterName is the cluster's name, with which the cloud marks what is its.
	ClusterName string
	// ClusterCIDR is the range of pods' addresses.
	ClusterCIDR string
	// NeedsRoutes is "true" where pods of different nodes reach each other by the cloud's
	// routes alone, else "false".
	NeedsRoutes string
	// CloudURL is where the cloud's API is.
	CloudURL string
	// DialectURL is where the cloud is spoken to in the dialect that was chosen; "" without one.
	DialectURL string
	// DialectHost is that URL's HOST:PORT.
	DialectHost string
	// TokenFile holds the token that the CCM shows to the cloud.
	TokenFile string
	// KeyFile holds the private key of a CCM that signs its calls: RSA, PKCS #8 in PEM. KeyFingerprint is the
	// name of its public key, by which the cloud knows it.
	KeyFile, KeyFingerprint string
	// Project is the cloud's project, or account, that the cluster is in.
	Project string
	// Region is that of the lab's cloud.
	Region string
	// NetworkCode is what the identifiers of the project's network end in, in dialects that use codes.
	NetworkCode string
	// CAFile holds the certificate that signed the cloud's.
	CAFile string
	// Address and Port are free to listen on, for health and metrics.
	Address string
	Port    int
}

// ValueNames are the fields of Values, as templates name them, for help and
// messages.
func ValueNames() string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Values]()) {
		names = append(names, "."+f.Name)
	}
	return strings.Join(names, ", ")
}

// allTemplates yields them with what to call each.
func (c *CCM) allTemplates() func(yield func(name, text string) bool) {
	return func(yield func(name, text string) bool) {
		for i, arg := range c.Args {
			if !yield(fmt.Sprintf("argument %d, %q", i+1, arg), arg) {
				return
			}
		}
		for _, kv := range c.Env {
			if !yield(fmt.Sprintf("environment %q", kv), kv) {
				return
			}
		}
		if c.ConfigTemplate != "" {
			yield("the CCM's configuration", c.ConfigTemplate)
		}
	}
}

// exampleValues has something in every field.
func exampleValues() Values {
	var v Values
	all := reflect.ValueOf(&v).Elem()
	for i := range all.NumField() {
		if f := all.Field(i); f.Kind() == reflect.String {
			f.SetString("x")
		} else {
			f.SetInt(1)
		}
	}
	return v
}

func fillTemplate(text string, v Values, readFile func(string) (string, error)) (string, error) {
	t, err := template.New("template").Funcs(template.FuncMap{"readFile": readFile}).Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.Execute(&out, v); err != nil {
		_, what, _ := strings.Cut(err.Error(), " at ") // Before that it says where, which the caller knows better.
		return "", fmt.Errorf("%s; the fields are %s", what, ValueNames())
	}
	return out.String(), nil
}

// readFile reads a file's text for a template, as {{readFile .TokenFile}}, without the line's end.
func readFile(name string) (string, error) {
	text, err := os.ReadFile(name)
	return strings.TrimSpace(string(text)), err
}

// Fill fills templates in.
func (v Values) Fill(texts []string) ([]string, error) {
	var filled []string
	for _, text := range texts {
		s, err := fillTemplate(text, v, readFile)
		if err != nil {
			return nil, err
		}
		filled = append(filled, s)
	}
	return filled, nil
}

// CheckTemplate returns what is wrong with a template, before there are values.
func CheckTemplate(text string) error {
	readNothing := func(string) (string, error) { return "x", nil }
	// With everything there and with nothing there: both branches of an if.
	_, err := fillTemplate(text, exampleValues(), readNothing)
	if err == nil {
		_, err = fillTemplate(text, Values{}, readNothing)
	}
	return err
}
