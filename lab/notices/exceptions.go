package notices

import "embed"

// Licences that cannot be looked up are declared here by hand, each with the reason.

// partsWithoutTerms are third-party parts that modules contain without their licence, by module.
// The licence is in a folder of texts with the part's name.
var partsWithoutTerms = map[string][]string{
	// The module has SQLite as C code in one file. Because of that a program needs
	// a C library, and ours are linked statically.
	"github.com/mattn/go-sqlite3": {"sqlite", "glibc"},
	// The module embeds Swagger UI 5.29.0. Its licence is from the npm package swagger-ui-dist of
	// that version.
	"github.com/swaggest/swgui": {"swagger-ui"},
}

// texts are the licences that are kept here. Those of Go are copies from GOROOT, because
// not every distribution has them there.
//
//go:embed texts
var texts embed.FS

// replacedByOwn are modules that are replaced by code of this repository, by a `replace` with a
// folder. The project's own licence applies to them.
var replacedByOwn = map[string]string{
	"github.com/euank/go-kmsg-parser": "lab/kube/kmsg, see lab/kube/go.mod",
	"github.com/fsnotify/fsnotify":    "lab/kube/fsnotify, see lab/kube/go.mod",
}

// otherTerms are programs whose licence is passed on in another way.
var otherTerms = map[string]string{
	"github.com/opencontainers/runc": "Debian's package, made without modules: /usr/share/doc/runc/copyright",
}
