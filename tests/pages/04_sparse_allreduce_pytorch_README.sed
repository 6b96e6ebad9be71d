s/train_text.py/& --steps 3 --layers 2 --width 64 --ways ddp,sparse/
