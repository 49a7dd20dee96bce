package notices

import (
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const status = `Package: libc6
Status: install ok installed
Architecture: amd64
Description: GNU C Library
 Version: is no field here
Version: 2.36-9+deb12u1

Package: gone
Status: deinstall ok config-files
Version: 1
`

func TestSBOM(t *testing.T) {
	var i Collection
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.Open(self)
	require.NoError(t, err)
	defer func() { _ = program.Close() }()
	require.NoError(t, i.AddProgram("/usr/bin/self", program))
	require.NoError(t, i.AddProgram("/usr/bin/script", strings.NewReader("#!/bin/sh\n")))
	i.AddDebian([]byte(status))
	require.NoError(t, i.AddVendored(strings.NewReader("# example.com/a v1.2.3\n## explicit\nexample.com/a/b\n")))
	text, err := i.sbom()
	require.NoError(t, err)
	again, err := i.sbom()
	require.NoError(t, err)
	assert.Equal(t, text, again)

	var bom struct {
		BOMFormat, SpecVersion string
		Components             []component
		Dependencies           []dependency
	}
	require.NoError(t, json.Unmarshal([]byte(text), &bom))
	assert.Equal(t, "CycloneDX 1.6", bom.BOMFormat+" "+bom.SpecVersion)
	var purls, names []string
	for _, c := range bom.Components {
		purls, names = append(purls, c.PURL), append(names, c.Name)
	}
	assert.Contains(t, names, "/usr/bin/self")
	assert.NotContains(t, names, "/usr/bin/script")
	assert.NotContains(t, names, "gone")
	assert.Contains(t, purls, "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64")
	assert.Contains(t, purls, "pkg:golang/example.com/a@v1.2.3")
	goVersion := strings.TrimPrefix(runtime.Version(), "go")
	assert.Contains(t, purls, "pkg:golang/stdlib@v"+goVersion)
	require.Len(t, bom.Dependencies, 1)
	assert.Contains(t, bom.Dependencies[0].DependsOn, "pkg:golang/stdlib@v"+goVersion)
	for _, ref := range bom.Dependencies[0].DependsOn {
		assert.Contains(t, purls, ref)
	}
}
