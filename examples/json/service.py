"""An endpoint of no protocol: a head behind FastAPI (`pip install fastapi uvicorn`).

python ../mlserver/make_head.py && uvicorn service:app --port 8081
"""

import numpy as np
from fastapi import FastAPI, Header, HTTPException

app = FastAPI()
head = dict(np.load("head.npz"))
W, v = head["W"], head["v"]
w, c = head.get("w", np.zeros(len(v))), float(head.get("c", 0.0))


@app.post("/generate")
def generate(question: dict, authorization: str = Header("")) -> dict:
    """Answer a batch of sequences; a token is asked for, to show how one is sent."""
    if authorization != "Bearer open sesame":
        raise HTTPException(401, "who are you?")
    X = np.array(question["inputs"])
    scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1]) + X @ w
    gates = np.exp(scores - scores.max(1, keepdims=True))
    values = ((X @ v) * gates).sum(1) / gates.sum(1) + c
    return {"outputs": [{"hidden": float(y)} for y in values]}
