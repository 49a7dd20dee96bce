// Package report writes what came out of a run of the conformance suite: YAML for people and
// programs, JUnit's XML for CI systems, and an HTML page with the tests' timelines. It draws no
// conclusions: results and verdicts are those of conformance.Report. Begin with WriteFiles.
package report

import (
	"errors"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// Files are the names of the files that WriteFiles writes.
var Files = []string{"report.yaml", "junit.xml", "report.html"}

// WriteFiles writes the report into a folder, which is made if it is not there:
// report.yaml for people and programs, junit.xml for CI systems, report.html for
// people, with what happened in each test. A file is replaced as a whole. It returns those that were written.
func WriteFiles(r *conformance.Report, dir string) (files []string, err error) {
	report, err1 := yaml.Marshal(r)
	junit, err2 := JUnit(r)
	page, err3 := HTML(r)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{Files[0], report}, {Files[1], junit}, {Files[2], page}} {
		file := filepath.Join(dir, f.name)
		// For whoever may read the folder: a CI system's user is another one.
		if err := errors.Join(atomicfile.Write(file, f.data), os.Chmod(file, 0o644)); err != nil {
			return files, err
		}
		files = append(files, file)
	}
	return files, nil
}
