package notices

import "embed"

// This file has all that is not looked up, by hand and with its reason.

// partsWithoutTerms are what modules bring along without its terms, by module.
// The terms are in a folder of texts with that name.
var partsWithoutTerms = map[string][]string{
	// The module has SQLite as C code in one file; it is what makes a program need
	// a C library, and ours are linked statically.
	"github.com/mattn/go-sqlite3": {"sqlite", "glibc"},
	// The module embeds Swagger UI 5.29.0; the npm package swagger-ui-dist of that
	// version has its terms.
	"github.com/swaggest/swgui": {"swagger-ui"},
}

// texts are the terms that are kept here. Those of Go are copies from GOROOT:
// not every distribution has them there.
//
//go:embed texts
var texts embed.FS

// replacedByOwn are modules that code of this repository takes the place of, by
// a `replace` with a folder: the project's own licence is theirs.
var replacedByOwn = map[string]string{
	"github.com/euank/go-kmsg-parser": "lab/kube/kmsg, see lab/kube/go.mod",
}

// otherTerms are programs that come with their terms in another way.
var otherTerms = map[string]string{
	"github.com/opencontainers/runc": "Debian's package, made without modules: /usr/share/doc/runc/copyright",
}
