package jinja

// expr is an expression; it is evaluated in a scope.
type expr interface {
	eval(s *scope) (any, error)
}

type (
	literal struct{ value any }
	// hole stands for the text that a block's filters are applied to.
	hole     struct{}
	nameExpr struct {
		line int
		name string
	}
	attrExpr struct {
		line int
		of   expr
		name string
	}
	itemExpr struct {
		line int
		of   expr
		key  expr
	}
	sliceExpr struct {
		line  int
		of    expr
		parts [3]expr // start, stop, step; nil where left out
	}
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct {
		line         int
		keys, values []expr
	}
	condExpr struct {
		line                  int
		then, cond, otherwise expr // otherwise may be nil
	}
	logicExpr struct {
		left, right expr
		or          bool
	}
	notExpr     struct{ of expr }
	compareExpr struct {
		line  int
		first expr
		ops   []string
		rest  []expr
	}
	binaryExpr struct {
		line        int
		op          string
		left, right expr
	}
	signExpr struct {
		line     int
		negative bool
		of       expr
	}
	argument struct {
		name   string
		spread int // 1: *value, 2: **value
		value  expr
	}
	callExpr struct {
		line int
		fn   expr
		args []argument
	}
	filterExpr struct {
		line  int
		name  string
		fn    filterFunc
		value expr
		args  []argument
	}
	testExpr struct {
		line    int
		name    string
		fn      testFunc
		value   expr
		args    []argument
		negated bool
	}
)

// node is a part of a template that writes output.
type node interface {
	exec(s *scope) error
}

type (
	dataNode   struct{ text string }
	outputNode struct {
		line  int
		value expr
	}
	ifNode struct {
		line      int
		conds     []expr
		bodies    [][]node
		otherwise []node
	}
	forNode struct {
		line            int
		target          target
		seq, cond       expr
		recursive       bool
		body, otherwise []node
	}
	setNode struct {
		line    int
		target  target
		value   expr
		filters expr // around a hole, for the block form
		body    []node
	}
	macroNode struct {
		line   int
		name   string
		params []param
		body   []node
	}
	callNode struct {
		line   int
		params []param
		call   *callExpr
		body   []node
	}
	filterNode struct {
		line    int
		filters expr
		body    []node
	}
	withNode struct {
		line   int
		names  []string
		values []expr
		body   []node
	}
	generationNode struct{ body []node }
	jumpNode       struct {
		line int
		kind string // break, continue
	}
)

// target is what is assigned to: a name, an attribute of a namespace, or a tuple.
type target struct {
	name, attr string
	tuple      bool
	parts      []target
}

type param struct {
	name     string
	fallback expr
}
