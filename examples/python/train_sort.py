"""train_sort.py: trains a small causal transformer to sort six letters, once with attn and once with PyTorch's own attention.
SPDX-License-Identifier: MIT

Both start from the same weights and see the same letters. attn's gradients come through autograd from attn.torch; the loss is the same
at every step but for rounding, and the model learns the task. (In float64, as training makes the rounding of float32 grow to
a difference that one sees after some hundred steps.)

prints
    step   0: the loss is above 1; attn and PyTorch are less than 1e-12 apart
    step 100: the loss is below 0.5; attn and PyTorch are less than 1e-07 apart
    step 299: the loss is below 0.1; attn and PyTorch are less than 1e-07 apart
    sorts at least 95 of 100 new words right, with attn and with PyTorch
"""
import torch
from torch import nn

import attn.torch

LETTERS, LENGTH, WIDTH, HEADS, LAYERS, STEPS = 3, 6, 48, 3, 3, 300


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, dim=-1))
        x = x + self.out(self.attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Sorter(nn.Module):
    """Reads six letters and the sorted ones so far; says the next one."""

    def __init__(self, attention):
        super().__init__()
        torch.manual_seed(1)
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Parameter(0.02 * torch.randn(2 * LENGTH - 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))

    def forward(self, words):
        return self.head(self.blocks(self.letter(words) + self.place[:words.shape[1]]))

    def sort(self, words):
        for _ in range(LENGTH):
            words = torch.cat([words, self(words)[:, -1:].argmax(-1)], dim=1)
        return words[:, LENGTH:]


def train(attention):
    """The trained model and its losses."""
    model, losses = Sorter(attention), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        words = torch.randint(LETTERS, (64, LENGTH), generator=numbers)
        both = torch.cat([words, words.sort(dim=1).values], dim=1)
        said = model(both[:, :-1])[:, LENGTH - 1:]
        loss = nn.functional.cross_entropy(said.flatten(0, 1), both[:, LENGTH:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    runs = [train(attention) for attention in (attn.torch.scaled_dot_product_attention, nn.functional.scaled_dot_product_attention)]
    (_, ours), (_, theirs) = runs
    for step, text, right, bound in ((0, "above 1", lambda x: x > 1, 1e-12), (100, "below 0.5", lambda x: x < 0.5, 1e-7),
                                     (STEPS - 1, "below 0.1", lambda x: x < 0.1, 1e-7)):
        apart = max(abs(a - b) for a, b in zip(ours[:step + 1], theirs[:step + 1]))
        print("step %3d: the loss is %s; attn and PyTorch are %s" % (
            step, text if right(ours[step]) else "%.3g" % ours[step], "less than %.0e apart" % bound if apart < bound else "%.3g apart" % apart))
    words = torch.randint(LETTERS, (100, LENGTH), generator=torch.Generator().manual_seed(3))
    rights = [int((model.sort(words) == words.sort(dim=1).values).all(dim=1).sum()) for model, _ in runs]
    print("sorts %s of 100 new words right, with attn and with PyTorch" % ("at least 95" if min(rights) >= 95 else rights))


main()
