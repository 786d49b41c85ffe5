"""How people and programs reach Redrive: each face parses, calls one service method, shapes the answer."""
