package notices

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Inventory is what one artefact is made of, as a software bill of materials: CycloneDX 1.6 in JSON
// (https://cyclonedx.org/docs/1.6/json).
type Inventory struct {
	components map[string]component // By their references.
	contains   map[string][]string  // References of what a component is made of, by its reference.
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

// addProgram adds a program, under this name, with Go's standard library and the modules of which
// it was compiled.
func (i *Inventory) addProgram(name string, info *buildinfo.BuildInfo) {
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	refs := []string{i.addModule("stdlib", "v"+goVersion)}
	if info.Main.Path != "" {
		refs = append(refs, i.addModule(info.Main.Path, info.Main.Version))
	}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Version != "" {
			m = m.Replace // By another module; a folder has no version, and is code of this repository.
		}
		refs = append(refs, i.addModule(m.Path, m.Version))
	}
	ref := i.add(component{Type: "application", Ref: "file:" + name, Name: name})
	i.contains[ref] = refs
}

// AddVendored adds the modules that vendor/modules.txt lists.
func (i *Inventory) AddVendored(modules io.Reader) error {
	lines := bufio.NewScanner(modules)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) >= 3 && fields[0] == "#" {
			i.addModule(fields[1], fields[2])
		}
	}
	return lines.Err()
}

// AddDebian adds the packages in a file of dpkg's, its status (deb822(5)).
func (i *Inventory) AddDebian(status []byte) {
	for stanza := range bytes.SplitSeq(status, []byte("\n\n")) {
		fields := map[string]string{}
		for line := range strings.Lines(string(stanza)) {
			if key, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
				fields[key] = strings.TrimSpace(value)
			}
		}
		name, version := fields["Package"], fields["Version"]
		if name == "" || strings.HasPrefix(fields["Status"], "deinstall") {
			continue
		}
		purl := "pkg:deb/debian/" + url.PathEscape(name) + "@" + url.QueryEscape(version) +
			"?arch=" + url.QueryEscape(fields["Architecture"])
		i.add(component{Type: "library", Ref: purl, Name: name, Version: version, PURL: purl})
	}
}

func (i *Inventory) addModule(path, version string) string {
	if version == "(devel)" { // Compiled in its own folder.
		version = ""
	}
	purl := "pkg:golang/" + path
	if version != "" {
		purl += "@" + url.QueryEscape(version)
	}
	return i.add(component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl})
}

func (i *Inventory) add(c component) string {
	if i.components == nil {
		i.components, i.contains = map[string]component{}, map[string][]string{}
	}
	i.components[c.Ref] = c
	return c.Ref
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// sbom is the list. It has no time and no serial number, and is the same whenever the artefact is.
func (i *Inventory) sbom() (string, error) {
	components, dependencies := []component{}, []dependency{}
	for _, ref := range slices.Sorted(maps.Keys(i.components)) {
		components = append(components, i.components[ref])
		if refs, ok := i.contains[ref]; ok {
			slices.Sort(refs)
			dependencies = append(dependencies, dependency{ref, slices.Compact(refs)})
		}
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"components": components, "dependencies": dependencies,
	}, "", " ")
	return string(text) + "\n", err
}
