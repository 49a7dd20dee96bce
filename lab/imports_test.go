package lab

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// layers are the folders of lab, "." for the handle itself, from the top down. A package
// imports of lab what is in a lower layer only. A folder stands for all below it that are
// not named themselves.
var layers = [][]string{
	{"cli"},
	{"classroom"},
	{"lessons/site"},
	{"lessons"},
	{"suite"},
	{"lifecycle"},
	{"console"},
	{"compare", "explain", "watch"},
	{"status", "bench"},
	{"."},
	{"integration", "doctor"},
	{"testbed", "agent", "cluster/kinds"},
	{"cluster/embedded", "cluster/kind", "cluster/external"},
	{"cluster/kubeaccess", "cluster/local"},
	{"cluster"},
	{"conformance"},
	{"console/labscene", "image/debian", "bundle"},
	{"apply", "image", "pki", "publish", "timeline", "ui"},
	{"dialects", "notices"},
	{"build"},
	{"process", "state"},
	{"atomicfile", "fakekubelet", "follow", "kubediff", "labels", "lines"},
	{"remedy"},
}

const module = "github.com/ccmlab/ccmlab/"

// otherModules are folders of lab that are Go modules of their own.
var otherModules = []string{"demoserver", "kube", "node"}

// layerOf returns the entry of layers that a folder belongs to, and its layer; "" if there
// is none.
func layerOf(folder string) (entry string, layer int) {
	for ; ; folder = path.Dir(folder) {
		for i, entries := range layers {
			if slices.Contains(entries, folder) {
				return folder, i
			}
		}
		if path.Dir(folder) == "." { // "." is the handle alone.
			return "", 0
		}
	}
}

// eachImport calls fn for each import of each file that is no test, with the file's folder.
func eachImport(t *testing.T, root string, fn func(folder, imported string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"testdata", "content"}, d.Name()) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			fn(filepath.ToSlash(folder), imported)
		}
		return nil
	}))
}

func TestImportsRunDownwards(t *testing.T) {
	withoutLayer := map[string]bool{}
	eachImport(t, ".", func(folder, imported string) {
		if slices.Contains(otherModules, strings.Split(folder, "/")[0]) {
			return
		}
		from, fromLayer := layerOf(folder)
		if from == "" {
			withoutLayer[folder] = true
			return
		}
		within, ofLab := strings.CutPrefix(imported+"/", module+"lab/")
		if !ofLab {
			return
		}
		to, toLayer := layerOf(path.Clean(within))
		if to != "" && to != from {
			assert.Less(t, fromLayer, toLayer, "lab/%s imports %s, which is not in a layer below it", folder, imported)
		}
	})
	assert.Empty(t, withoutLayer, "folders without a layer: add them to layers")
}

// Who has a cluster asks its interface, not which kind it is.
func TestOnlyKindsNamesTheKinds(t *testing.T) {
	var kinds []string
	for _, kind := range []string{"embedded", "kind", "external"} {
		kinds = append(kinds, module+"lab/cluster/"+kind)
	}
	allowed := []string{
		"lab/cluster/kinds",
		"lab/testbed",   // It has an API server that only an embedded cluster has alone.
		"scripts/build", // It packs the programs of an embedded cluster into an image.
	}
	for _, root := range []string{"lab", "scripts", "cmd"} {
		eachImport(t, filepath.Join("..", root), func(folder, imported string) {
			folder = path.Join(root, folder)
			if slices.Contains(kinds, imported) && !slices.Contains(allowed, folder) {
				t.Errorf(
					"%s imports %s; what it wants to know of the kind is for cluster.Kind or the cluster's interface to say",
					folder, imported,
				)
			}
		})
	}
}
